"""How late pushes are: what clients did, matched with what watchers were shown. Pure.

Tests: `tests/benchmarks/test_room_pushes.py`.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.rooms.visitors import CountSeen, Seen, Step


@dataclass
class PushLags:
    """Changes of rooms on their way to watchers.

    Attributes:
        lags_s: from the sending of a change to the push that shows it, for each watcher, by cause.
        expected: deliveries, if each change were shown to each watcher of its room.
        missing: of these; a later change may have taken the place of one.
        unmatched: changes that were shown, and that no client has made.
    """

    lags_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    expected: int = 0
    missing: int = 0
    unmatched: int = 0

    @property
    def every_s(self) -> list[float]:
        return [lag for some in self.lags_s.values() for lag in some]

    def __add__(self, other: "PushLags") -> "PushLags":
        found = PushLags(
            expected=self.expected + other.expected,
            missing=self.missing + other.missing,
            unmatched=self.unmatched + other.unmatched,
        )
        for each in (self, other):
            for cause, lags in each.lags_s.items():
                found.lags_s[cause] += lags
        return found


def member_deliveries(steps: Iterable[Step], seen: Iterable[Seen], watchers: Mapping[str, int]) -> PushLags:
    """Return the deliveries of changes that are shown with the names of members.

    Args:
        watchers: of each room.
    """
    found, made = PushLags(), defaultdict[tuple[str, str, bool], list[Step]](list)
    for step in sorted(steps, key=lambda step: step.at):
        made[step.uid, step.room, step.is_member].append(step)
    shown: Counter[Step] = Counter()
    for push in seen:
        some = made.get((push.uid, push.room, push.is_member), [])
        place = bisect_right(some, push.at, key=lambda step: step.at)
        if not place:
            found.unmatched += 1
            continue
        step = some[place - 1]
        shown[step] += 1
        found.lags_s[step.cause].append(push.at - step.at)
    for some in made.values():
        for step in some:
            found.expected += watchers.get(step.room, 0)
            found.missing += max(0, watchers.get(step.room, 0) - shown[step])
    return found


def count_deliveries(
    before: int, steps: Iterable[Step], seen: Iterable[CountSeen], watchers: int
) -> PushLags:
    """Return the deliveries of changes of a room that only grows or only shrinks, shown as its count.

    A count does not tell who: changes are taken to be shown in the order in which they were sent.

    Args:
        before: the number of members that all watchers have seen before the first of these changes.
    """
    found, made = PushLags(), sorted(steps, key=lambda step: step.at)
    shown: Counter[str] = Counter()
    for watcher, members, at in sorted(seen, key=lambda push: push.at):
        changed = abs(members - before)
        for step in made[shown[watcher] : changed]:
            found.lags_s[step.cause].append(at - step.at)
        found.unmatched += max(0, changed - len(made))
        shown[watcher] = max(shown[watcher], min(changed, len(made)))
    found.expected = watchers * len(made)
    found.missing = found.expected - shown.total()
    return found
