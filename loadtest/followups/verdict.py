"""Whether follow-ups were told as they should have been; the streams of one shard are the truth. No I/O.

An offline period is from an offline event to the user's next online event; both have times of Redis' clock,
in their entry ids. Longer than `after`: it has one follow-up, and none if it is shorter. Between `after` and
the longest lateness allowed a return may have come before the follow-up was told: then either is right.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtest.checker.comparison import TRANSITIONS
from loadtest.checker.periods import id_order
from loadtest.events import Event

Place = tuple[int, int]
"""An entry id, as ids are ordered."""


class Told(NamedTuple):
    """An entry of the follow-ups; times in ms."""

    place: Place
    id: str
    uid: str
    offline_id: Place
    due_ms: int
    at_ms: int


@dataclass(frozen=True)
class Verdict:
    """What was found."""

    owed: set[str]  # users whose last period was long enough: those who get a follow-up in the end
    told: set[str]  # users who got one
    late_ms: list[int]  # of all that were told, in order
    broken: list[str]  # promises, in words


def judge(
    events: Iterable[Event], told: Sequence[Told], *, after_ms: int, late_max_ms: int, now_ms: int
) -> Verdict:
    """Hold what was told against what happened.

    Args:
        events: of the stream, in order.
        told: of the stream of follow-ups, in order.
        after_ms: of the one rule that there was.
        late_max_ms: how late a follow-up may be.
        now_ms: when the streams were read.
    """
    by_uid: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.type in TRANSITIONS:
            by_uid[event.uid].append(event)
    wanted: dict[tuple[str, Place], bool] = {}  # periods that last long enough -> whether for certain
    ends: dict[tuple[str, Place], Place | None] = {}
    owed = set()
    for uid, each in by_uid.items():
        for event, following in zip(each, [*each[1:], None], strict=True):
            if event.type == "online":
                continue
            begin, end = id_order(event.id), id_order(following.id) if following else None
            length_ms = (end[0] if end else now_ms) - begin[0]
            ends[uid, begin] = end
            if length_ms > after_ms:
                wanted[uid, begin] = length_ms > after_ms + late_max_ms
            if end is None and length_ms > after_ms + late_max_ms:
                owed.add(uid)
    found = Counter((each.uid, each.offline_id) for each in told)
    broken = [
        *_counted("twice in the stream", [key for key, times in found.items() if times > 1]),
        *_counted("ids twice", [each for each, n in Counter(each.id for each in told).items() if n > 1]),
        *_counted("to who came back in time", [key for key in found if key not in wanted]),
        *_counted("missing", [key for key, sure in wanted.items() if sure and key not in found]),
        *_counted(
            "early", [each for each in told if min(each.at_ms, each.due_ms) < each.offline_id[0] + after_ms]
        ),
        *_counted("after the return", [each for each in told if _is_after(each, ends)]),
    ]
    return Verdict(owed, {each.uid for each in told}, [each.at_ms - each.due_ms for each in told], broken)


def _is_after(told: Told, ends: Mapping[tuple[str, Place], Place | None]) -> bool:
    end = ends.get((told.uid, told.offline_id))
    return end is not None and told.place[0] > end[0]


def _counted(what: str, some: Sequence[object]) -> list[str]:
    return [f"{len(some)} {what}, such as {some[0]}"] if some else []
