"""Whether all was handled, and none early or twice without a reason; from what the workers noted down."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import NamedTuple

SETTLED_LINE = "-"


class Handling(NamedTuple):
    """One event that one worker handled.

    Attributes:
        event: the number of the event.
        attempt: see `Due`.
        due_ms, late_ms: see `Due`.
        worker: who.
        is_held: whether the worker ended before it had heard that this was settled.
    """

    event: int
    attempt: int
    due_ms: int
    late_ms: int
    worker: int
    is_held: bool


def handlings(worker: int, notes: str) -> Iterator[Handling]:
    """Read what a worker noted; a last line that is not whole was never acted upon."""
    lines = notes.split("\n")[:-1]
    settled_to = max((i for i, line in enumerate(lines) if line == SETTLED_LINE), default=-1)
    for i, line in enumerate(lines):
        if line != SETTLED_LINE:
            event, attempt, due_ms, late_ms = map(int, line.split())
            yield Handling(event, attempt, due_ms, late_ms, worker, is_held=i > settled_to)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a trial.

    Attributes:
        missing: events that nobody handled.
        early: events that were handled before their time.
        again: handlings of an event beyond its first.
        unexplained: of these, those where whoever had it before was not killed while he held it.
        unhindered_ms: lateness of the events of which no lease had to end first, sorted.
        all_ms: lateness of all, when they were handled by whoever settled them, sorted.
        last_ms: when the last event was handed out, Unix ms of Redis.
    """

    missing: int
    early: int
    again: int
    unexplained: int
    last_ms: int
    unhindered_ms: list[int] = field(repr=False)
    all_ms: list[int] = field(repr=False)

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.missing or self.early or self.unexplained)


def judge(asked_us: Sequence[float], seen: Collection[Handling], killed: Collection[int]) -> Verdict:
    """Hold what workers noted against what was scheduled.

    Args:
        asked_us: of each event, the microsecond of Redis' clock before which it must not come.
        seen: all handlings.
        killed: the workers that were killed.
    """
    by_event: dict[int, list[Handling]] = {}
    for each in sorted(seen, key=lambda handling: handling.attempt):
        by_event.setdefault(each.event, []).append(each)
    again = unexplained = 0
    for several in by_event.values():
        again += len(several) - 1
        unexplained += sum(
            not (each.is_held and each.worker in killed and each.attempt < following.attempt)
            for each, following in pairwise(several)
        )
    firsts = [several[0] for several in by_event.values()]
    return Verdict(
        missing=len(asked_us) - len(by_event),
        early=sum((each.due_ms + each.late_ms) * 1000 < asked_us[each.event] for each in seen),
        again=again,
        unexplained=unexplained,
        last_ms=max((each.due_ms + each.late_ms for each in firsts), default=0),
        unhindered_ms=sorted(each.late_ms for each in firsts if each.attempt == 1),
        all_ms=sorted(several[-1].late_ms for several in by_event.values()),
    )


def percentiles(sorted_ms: Sequence[int]) -> Mapping[str, float]:
    """Return p50, p99 and max."""
    if len(sorted_ms) < 2:
        return dict.fromkeys(("p50", "p99", "max"), float(sum(sorted_ms)))
    cuts = quantiles(sorted_ms, n=100)
    return {"p50": cuts[49], "p99": cuts[98], "max": float(sorted_ms[-1])}
