"""The figures of all workers, of Redis and of this process in the formats that Prometheus reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from presence.admin.metric_kinds import OTHER, Kind, Labels, Metric, Path
from presence.admin.metric_table import TABLE
from presence.admin.own_figures import FIGURES, HISTOGRAMS, Scrape

_FAMILIES: Final = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily}


def render(scrape: Scrape, accept: str = "") -> tuple[bytes, str]:
    """Return all metrics, and the content type of the format.

    Args:
        scrape: what they are made of.
        accept: the request's header: OpenMetrics for whoever asks for it, else Prometheus' text format 0.0.4.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Figures(scrape)), content_type


class _Figures(Collector):
    """One scrape as prometheus_client wants to be given it."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Family]:
        families = (_family(metric, self._scrape) for metric in TABLE)
        return [family for family in families if family.samples]


def _family(metric: Metric, scrape: Scrape) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        return _histograms(metric, scrape)
    if metric.kind is Kind.INFO:
        info = InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
        for labels, _ in FIGURES[metric.name](scrape):
            info.add_metric([], dict(zip(metric.labels, labels, strict=True)))
        return info
    family: CounterMetricFamily | GaugeMetricFamily = _FAMILIES[metric.kind](
        metric.name, metric.help, labels=metric.labels
    )
    for labels, value in _series(metric, scrape):
        if value is not None:
            family.add_metric(labels, value)
    return family


def _series(metric: Metric, scrape: Scrape) -> Iterable[tuple[Sequence[str], float | None]]:
    if not metric.is_of_workers:
        return FIGURES[metric.name](scrape)
    return [
        ((str(answer.number), *labels), value)
        for answer in scrape.answers
        if answer.sample is not None
        for labels, value in _of_worker(metric, answer.sample)
    ]


def _of_worker(metric: Metric, sample: Mapping[str, Any]) -> Iterator[tuple[Labels, float]]:
    for labels, path in metric.parts.items():
        if (found := _find(sample, path)) is not None:
            yield labels, metric.measure(found)
    if metric.counts and (counts := _find(sample, metric.counts)) is not None:
        depth = len(metric.labels) - 1
        numbers = dict.fromkeys(metric.known, 0.0)
        for labels, number in _leaves(counts, depth):
            labels = labels if labels in numbers else (OTHER,) * depth  # noqa: PLW2901 - bounded
            numbers[labels] = numbers.get(labels, 0.0) + number
        yield from numbers.items()


def _leaves(counts: Mapping[str, Any], depth: int) -> Iterator[tuple[Labels, float]]:
    for name, found in counts.items():
        if depth == 1:
            yield (name,), float(found)
        else:
            yield from (((name, *rest), number) for rest, number in _leaves(found, depth - 1))


def _find(sample: Mapping[str, Any], path: Path) -> Any:
    """Return what lies at a path of a sample; None where nothing does, as of a service that is off."""
    found: Any = sample
    for name in path:
        found = found.get(name)
        if found is None:
            return None
    return found


def _histograms(metric: Metric, scrape: Scrape) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    found: list[tuple[Labels, Any]]
    if metric.is_of_workers:
        (path,) = metric.parts.values()
        samples = ((str(each.number), each.sample) for each in scrape.answers if each.sample is not None)
        found = [((worker,), _find(sample, path)) for worker, sample in samples]
    else:
        found = [((), HISTOGRAMS[metric.name](scrape))]
    for labels, each in found:
        if each is not None:
            family.add_metric(labels, _buckets(each["bounds"], each["counts"]), each["sum"])
    return family


def _buckets(bounds_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return what Prometheus counts: all up to each bound; the last bound is infinite."""
    names = [*(str(float(bound)) for bound in bounds_s), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
