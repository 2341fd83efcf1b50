"""Renders the metrics of all workers, of Redis and of this process for Prometheus.

Series of unknown values are absent: a zero would mean that no user is online.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from presence import __version__
from presence.admin.http_metrics import OTHER, HttpMetrics
from presence.admin.metric_table import TABLE, Labels, Metric, MetricKind, Place
from presence.admin.workers import WorkerAnswer
from presence.config.settings import Settings
from presence.server.readiness import Readiness
from presence.store.node_states import NodeState, NodeStatus

Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The input of one rendering."""

    answers: Sequence[WorkerAnswer]  # of this machine's workers
    now: float  # monotonic seconds, of the clock of `WorkerAnswer.at`
    settings: Settings  # the effective ones
    online: int | None  # users online on all nodes; None: Redis did not answer
    nodes: Sequence[NodeState] | None  # those with a lease; None: Redis did not answer
    redis: Mapping[str, Any] | None  # its health, see `presence.store.health`; None: not read yet
    http: HttpMetrics  # this process' own counters


def render(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """Return all metrics, and the content type of the format.

    That is OpenMetrics if the request's header `accept` permits it, else Prometheus' text format 0.0.4.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collected(scrape)), content_type


def local_sample(scrape: Scrape) -> Sample:
    """Return the values that belong to no worker, in the shape of a worker's sample."""
    # While Redis is unreachable its last values are kept, but they are outdated.
    redis = scrape.redis if scrape.redis is not None and scrape.redis.get("status") == "ok" else None
    nodes = None
    if redis is not None and scrape.nodes is not None:
        nodes = {
            status: sum(each.status == status for each in scrape.nodes) for status in get_args(NodeStatus)
        }
    http = scrape.http
    return {
        "build": {(__version__, platform.python_version()): 1},
        "settings": {"lease": scrape.settings.lease},
        "users_online": None if redis is None else scrape.online,
        "nodes": nodes,
        "redis_up": redis is not None,
        "redis": redis,
        "http": {**vars(http), "durations": http.durations.report()},
        "process": http.process_stats.report(http.connections),
    }


def worker_sample(answer: WorkerAnswer, now: float) -> Sample:
    """Return the values of one worker: its sample, and facts about its answer."""
    sample = answer.sample
    if sample is None:
        return {"up": False}
    readiness = sample.get("readiness")
    return {
        **sample,
        "up": True,
        "age_s": max(0.0, now - answer.at),
        "who": {tuple(str(sample.get(name, "")) for name in ("node", "address", "version")): 1},
        "readiness_is": {each.value: readiness == each.value for each in Readiness},
    }


class _Collected(Collector):
    """One scrape as a collector of prometheus_client."""

    def __init__(self, scrape: Scrape) -> None:
        self._local: list[tuple[Labels, Sample]] = [((), local_sample(scrape))]
        self._workers: list[tuple[Labels, Sample]] = [
            ((str(each.number),), worker_sample(each, scrape.now)) for each in scrape.answers
        ]

    def collect(self) -> Iterable[Family]:
        for metric in TABLE:
            family = _family(metric, self._workers if metric.is_of_workers else self._local)
            if family.samples:
                yield family


def _family(metric: Metric, samples: Iterable[tuple[Labels, Sample]]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        return _histogram(metric, samples)
    series = (
        ((*worker, *labels), number)
        for worker, sample in samples
        for labels, number in _series(metric, sample)
    )
    if metric.kind is MetricKind.INFO:
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
        for labels, _ in series:
            info.add_metric([], dict(zip(metric.labels, labels, strict=True)))
        return info
    make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = make(metric.name, metric.help, labels=metric.labels)
    for labels, number in series:
        family.add_metric(labels, number)
    return family


def _series(metric: Metric, sample: Sample) -> Iterator[tuple[Labels, float]]:
    """Give the values of the labels after `worker`, and the number."""
    for first, path in metric.places.items():
        found = _find(sample, path)
        if not isinstance(found, Mapping):
            if found is not None:
                yield first, metric.measure(found)
        elif metric.known is None:
            yield from (((*first, *rest), float(number)) for rest, number in _leaves(found))
        else:
            numbers = dict.fromkeys(metric.known, 0.0)
            others = (OTHER,) * len(metric.known[0])
            for rest, number in _leaves(found):
                rest = rest if rest in numbers else others  # noqa: PLW2901 - bounded
                numbers[rest] = numbers.get(rest, 0.0) + number
            yield from (((*first, *rest), number) for rest, number in numbers.items())


def _leaves(counts: Mapping[Any, Any]) -> Iterator[tuple[Labels, float]]:
    """Give the numbers of nested maps by all their keys; one key may be several values."""
    for key, found in counts.items():
        labels = key if isinstance(key, tuple) else (str(key),)
        if isinstance(found, Mapping):
            yield from (((*labels, *rest), number) for rest, number in _leaves(found))
        else:
            yield labels, found


def _find(sample: Sample, path: Place) -> Any:
    """Return the value at a path of a sample; None if absent, for example for a service that is off."""
    found: Any = sample
    for name in path:
        found = found.get(name)
        if found is None:
            return None
    return found


def _histogram(metric: Metric, samples: Iterable[tuple[Labels, Sample]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    (path,) = metric.places.values()
    for worker, sample in samples:
        if (found := _find(sample, path)) is not None:
            family.add_metric(worker, _buckets(found["bounds"], found["counts"]), found["sum"])
    return family


def _buckets(bounds_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets; the last bound is infinite."""
    names = [*(str(float(bound)) for bound in bounds_s), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
