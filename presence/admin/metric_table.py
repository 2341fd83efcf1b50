"""All metrics, as declared in ``metrics.toml``: names, types, labels, and the paths of values in a sample.

Base units (`_seconds`, `_bytes`), `_total` for counters, `_info` for texts. Series are per worker: a replaced
worker restarts at 0, which `rate()` expects of one series and could not see in a sum. No label has values
that users choose: no uid, no address, no device. `docs/metrics.md` explains each metric, and each has an
alert, a panel of the dashboard, or a use named on that page.

All possible series exist from the start, with 0, so that Prometheus sees the first event of a kind as a step
from 0 to 1, and an alert on `rate()` does not miss it. Series of a service that is off are absent.

Tests: `tests/admin/test_prometheus.py`, `tests/docs/test_tables.py`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from presence.common.faults import WORK
from presence.core.slots import SLOTS_PER_TICK
from presence.protocol import Code

Labels = tuple[str, ...]
Place = tuple[str, ...]
"""The path of a value in a sample: the keys of nested maps."""

# Reasons for which a connection is refused, or ended because of its own packet.
REFUSALS: Final = (
    *(Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN, Code.LOGIN_TIMEOUT, Code.AUTH_FAILED),
    *(Code.RATE_LIMITED, Code.BUSY, Code.SESSION_LIMIT, Code.BANNED, Code.REPLACED),
    *(Code.SERVER_DRAIN, Code.SERVER_ERROR),
)
# Reasons for which a session ends.
ENDS: Final = (
    *(Code.LOGOUT, Code.BACKGROUND, Code.CLOSED, Code.IDLE_TIMEOUT, Code.SLOW_CONSUMER, Code.REPLACED),
    *(Code.KICKED, Code.AUTH_EXPIRED, Code.SESSION_LIMIT, Code.PROTOCOL_ERROR, Code.RATE_LIMITED),
    *(Code.TOO_LARGE, Code.SERVER_ERROR, Code.BANNED),
)
# Types and reasons of events; those of devices appear when there are any.
TRANSITIONS: Final = (
    *(("online", code.reason) for code in (Code.LOGIN, Code.RETURNED)),
    *(("offline", code.reason) for code in (*ENDS, Code.NODE_DOWN)),
    *(("away", code.reason) for code in (Code.AWAY, Code.BACK)),
    ("update", Code.UPDATED.reason),
    ("rooms", Code.ROOMS.reason),
    ("gap", "gap"),
)
# As in `presence.auth.tokens.Reason`, whose module would load cryptography.
TOKEN_REASONS: Final = (
    *("missing", "malformed", "unknown_key", "signature", "expired", "not_yet", "issuer", "audience"),
    *("claims", "other_uid"),
)
# Of refused requests of WebSocket.
REQUEST_STATUSES: Final = ("400", "403", "405", "426", "431", "505")
_KNOWN: Final[Mapping[str, tuple[Labels, ...]]] = {
    "work": tuple((each,) for each in WORK),
    "refusals": tuple((code.reason,) for code in REFUSALS),
    "ends": tuple((code.reason,) for code in ENDS),
    "transitions": TRANSITIONS,
    "request_statuses": tuple((each,) for each in REQUEST_STATUSES),
    "token_reasons": tuple((each,) for each in TOKEN_REASONS),
}
_MEASURES: Final[Mapping[str, Callable[[Any], float]]] = {
    "from_ms": lambda ms: float(ms) / 1000,
    "tick_of_slots": lambda slot_s: SLOTS_PER_TICK * float(slot_s),
    "first": lambda sizes: float(sizes[0]),
    "largest": max,
}


class MetricKind(StrEnum):
    """Types of metrics, named as by Prometheus; an `info` is a gauge of 1 with texts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str  # including the suffix `_total` or `_info`
    kind: MetricKind
    help: str  # one phrase, without a full stop
    labels: Labels  # names; the first is `worker` if each worker has its own series
    # by the values of the first labels after `worker`: the path of the value, or of a map from the values of
    # the remaining labels to values
    places: Mapping[Labels, Place]
    # label values that exist from the start, if a path has a map; further keys of the map count as `other`.
    # None: each key has a series.
    known: tuple[Labels, ...] | None = None
    measure: Callable[[Any], float] = float  # converts the raw value

    @property
    def is_of_workers(self) -> bool:
        """Whether its values are in the samples of workers."""
        return self.labels[:1] == ("worker",)


def _metric(name: str, declared: Mapping[str, Any]) -> Metric:
    of_worker = ("worker",) if declared.get("of", "worker") == "worker" else ()
    by_end = {"total": MetricKind.COUNTER, "info": MetricKind.INFO}.get(
        name.rpartition("_")[2], MetricKind.GAUGE
    )
    return Metric(
        name,
        MetricKind(declared.get("type", by_end)),
        declared["help"],
        (*of_worker, *declared.get("labels", ())),
        _places(declared["at"]),
        _KNOWN[declared["known"]] if "known" in declared else None,
        _MEASURES[declared["measure"]] if "measure" in declared else float,
    )


def _places(at: str | list[str]) -> dict[Labels, Place]:
    if isinstance(at, str):
        return {(): tuple(at.split("."))}
    by_value = (each.split() for each in at)
    return {(value,): tuple(path.split(".")) for value, path in by_value}


_DECLARED: Final = tomllib.loads((Path(__file__).parent / "metrics.toml").read_text("utf-8"))
TABLE: Final = tuple(_metric(name, declared) for name, declared in _DECLARED.items())
"""All metrics, in the order of output."""
