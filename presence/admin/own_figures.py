"""Numbers of metrics that are in no worker's sample: what Redis says, the settings, HTTP and this process.

Where something is not known its series are absent: a zero would say that nobody is online.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from presence import __version__
from presence.admin.http_figures import HttpFigures
from presence.admin.workers import Answer
from presence.samples import Readiness
from presence.settings import Settings
from presence.store.nodes import NodeState, NodeStatus


@dataclass(frozen=True, slots=True)
class Scrape:
    """All that one rendering is made of.

    Attributes:
        answers: of this machine's workers.
        now: monotonic seconds, of the clock of `Answer.at`.
        settings: as in effect.
        online: users online at all nodes; None: Redis did not answer.
        nodes: those that have a lease; None: Redis did not answer.
        redis: what it says of itself, see `presence.store.health`; None: it was not asked yet.
        http: this process' own counters.
    """

    answers: Sequence[Answer]
    now: float
    settings: Settings
    online: int | None
    nodes: Sequence[NodeState] | None
    redis: Mapping[str, Any] | None
    http: HttpFigures


Series = Iterable[tuple[Sequence[str], float | None]]
"""Values of labels, and the number; None: not known."""


def _build(_scrape: Scrape) -> Series:
    yield (__version__, platform.python_version()), 1


def _worker_info(scrape: Scrape) -> Series:
    for number, sample in _samples(scrape):
        texts = (str(sample.get(name, "")) for name in ("node", "address", "version"))
        yield (number, *texts), 1


def _readiness(scrape: Scrape) -> Series:
    for number, sample in _samples(scrape):
        for each in Readiness:
            yield (number, each.value), sample.get("readiness") == each.value


def _nodes(scrape: Scrape) -> Series:
    for status in get_args(NodeStatus) if scrape.nodes is not None and _answers(scrape) else ():
        yield (status,), sum(node.status == status for node in scrape.nodes or ())


def _answers(scrape: Scrape) -> bool:
    """Whether Redis answered last; what it said before that is kept beside it, and is old."""
    return scrape.redis is not None and scrape.redis.get("status") == "ok"


def _of_redis(name: str, scale: float = 1.0) -> Callable[[Scrape], Series]:
    def found(scrape: Scrape) -> Series:
        value = (scrape.redis or {}).get(name) if _answers(scrape) else None
        yield (), None if value is None else float(value) * scale

    return found


def _one(read: Callable[[Scrape], float | None]) -> Callable[[Scrape], Series]:
    return lambda scrape: [((), read(scrape))]


def _footprint(scrape: Scrape) -> Mapping[str, Any]:
    return scrape.http.footprint.report(scrape.http.connections)


def _cpu(scrape: Scrape) -> Series:
    used = _footprint(scrape)
    yield ("user",), used["cpu_user_s"]
    yield ("system",), used["cpu_system_s"]


def _samples(scrape: Scrape) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for answer in scrape.answers:
        if answer.sample is not None:
            yield str(answer.number), answer.sample


FIGURES: Final[Mapping[str, Callable[[Scrape], Series]]] = {
    "presence_build_info": _build,
    "presence_worker_info": _worker_info,
    "presence_worker_up": lambda scrape: [
        ((str(each.number),), each.sample is not None) for each in scrape.answers
    ],
    "presence_worker_readiness": _readiness,
    "presence_sample_age_seconds": lambda scrape: [
        ((str(each.number),), max(0.0, scrape.now - each.at))
        for each in scrape.answers
        if each.sample is not None
    ],
    "presence_idle_timeout_seconds": _one(lambda scrape: scrape.settings.idle_timeout),
    "presence_disconnect_grace_seconds": _one(lambda scrape: scrape.settings.disconnect_grace),
    "presence_lease_seconds": _one(lambda scrape: scrape.settings.lease),
    "presence_users_online": _one(lambda scrape: scrape.online if _answers(scrape) else None),
    "presence_nodes": _nodes,
    "presence_redis_up": _one(_answers),
    "presence_redis_ping_seconds": _of_redis("ping_ms", 0.001),
    "presence_redis_memory_bytes": _of_redis("used_memory_bytes"),
    "presence_redis_max_memory_bytes": _of_redis("maxmemory_bytes"),
    "presence_redis_clients": _of_redis("clients"),
    "presence_redis_evicted_keys_total": _of_redis("evicted_keys"),
    "presence_http_requests_total": lambda scrape: scrape.http.requests.items(),
    "presence_http_refusals_total": lambda scrape: _by_one(scrape.http.refusals),
    "presence_http_acts_total": lambda scrape: scrape.http.acts.items(),
    "presence_http_connections": _one(lambda scrape: scrape.http.connections),
    "presence_http_connections_accepted_total": _one(lambda scrape: scrape.http.accepted),
    "presence_http_viewers": lambda scrape: _by_one(scrape.http.viewers),
    "presence_http_events_missed_total": _one(lambda scrape: scrape.http.missed),
    "presence_http_process_resident_memory_bytes": _one(lambda scrape: _footprint(scrape)["rss_bytes"]),
    "presence_http_process_cpu_seconds_total": _cpu,
    "presence_http_process_open_fds": _one(lambda scrape: _footprint(scrape)["open_fds"]),
}
"""By metric."""

HISTOGRAMS: Final[Mapping[str, Callable[[Scrape], Mapping[str, Any]]]] = {
    "presence_http_request_duration_seconds": lambda scrape: scrape.http.durations.report(),
}
"""By metric, as `presence.histograms.Histogram` reports itself."""


def _by_one(counts: Mapping[str, int]) -> Series:
    return [((value,), number) for value, number in counts.items()]
