"""All metrics, as ``metrics.toml`` declares them: names, types, labels, and where in a sample numbers are.

Base units (`_seconds`, `_bytes`), `_total` for what only grows, `_info` for texts. Per worker: a worker that
was replaced begins at 0 again, which `rate()` expects of one series and could not see in a sum. Nothing has a
label that users choose: no uid, no address, no device. `docs/operations.md` says of each metric what
to do about it, and each is there for an alert, a panel of the dashboard, or a use that this page names.

A series that may ever be is there from the start, with 0: Prometheus sees the first event of a kind as a step
from 0 to 1, and an alert on `rate()` does not miss it. Those of a service that is off are absent.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from presence.common.faults import WORK
from presence.core.ticks import SLOTS_PER_TICK
from presence.protocol import Code

Labels = tuple[str, ...]
Place = tuple[str, ...]
"""Where something is in a sample: the keys of nested maps."""

# With what a connection is refused, or ended by a packet of its own.
REFUSALS: Final = (
    *(Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN, Code.LOGIN_TIMEOUT, Code.AUTH_FAILED),
    *(Code.RATE_LIMITED, Code.BUSY, Code.SESSION_LIMIT, Code.REPLACED, Code.SERVER_DRAIN, Code.SERVER_ERROR),
)
# With what a session ends.
ENDS: Final = (
    *(Code.LOGOUT, Code.BACKGROUND, Code.CLOSED, Code.IDLE_TIMEOUT, Code.SLOW_CONSUMER, Code.REPLACED),
    *(Code.KICKED, Code.AUTH_EXPIRED, Code.SESSION_LIMIT, Code.PROTOCOL_ERROR, Code.RATE_LIMITED),
    *(Code.TOO_LARGE, Code.SERVER_ERROR),
)
# Types and reasons of events.
TRANSITIONS: Final = (
    *(("online", code.reason) for code in (Code.LOGIN, Code.RETURNED)),
    *(("offline", code.reason) for code in (*ENDS, Code.NODE_DOWN)),
    *(("away", code.reason) for code in (Code.AWAY, Code.BACK)),
    ("update", Code.UPDATED.reason),
    ("gap", "gap"),
)
# As `presence.auth.tokens.Reason` has them, which would bring the cryptography along.
TOKEN_REASONS: Final = (
    *("missing", "malformed", "unknown_key", "signature", "expired", "not_yet", "audience", "claims"),
    "other_uid",
)
_KNOWN: Final[Mapping[str, tuple[Labels, ...]]] = {
    "work": tuple((each,) for each in WORK),
    "refusals": tuple((code.reason,) for code in REFUSALS),
    "ends": tuple((code.reason,) for code in ENDS),
    "transitions": TRANSITIONS,
    "token_reasons": tuple((each,) for each in TOKEN_REASONS),
}
_MEASURES: Final[Mapping[str, Callable[[Any], float]]] = {
    "from_ms": lambda ms: float(ms) / 1000,
    "tick_of_slots": lambda slot_s: SLOTS_PER_TICK * float(slot_s),
    "first": lambda sizes: float(sizes[0]),
    "largest": max,
}


class MetricKind(StrEnum):
    """Types of metrics, by the names that Prometheus has for them; an `info` is a gauge of 1 with texts."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as it is asked for: of a counter with `_total`, of an info with `_info`.
        kind: its type.
        help: one sentence, without the full stop.
        labels: by name; the first is `worker` where each worker has its own series.
        places: by the values of the first labels after `worker`: where the number is, or a map from the
            values of the labels that are left to numbers.
        known: values of labels that are there from the start, where a place has a map; what the map has
            beside them counts as `other`. None: whatever is there has a series.
        measure: makes the number of what is found.
    """

    name: str
    kind: MetricKind
    help: str
    labels: Labels
    places: Mapping[Labels, Place]
    known: tuple[Labels, ...] | None = None
    measure: Callable[[Any], float] = float

    @property
    def is_of_workers(self) -> bool:
        """Whether its numbers are in workers' samples."""
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
"""Every metric, in the order in which they are shown."""
