"""The events of a run in which Redis itself may have lost some: pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from loadtest.nodes.verdict import Expected, Verdict, judge, judge_order
from loadtest.scale.verdict import Event


class Forgets(Enum):
    """What Redis may lose: nothing, the last writes before a moment, or all that it had."""

    NOTHING = "nothing"
    LAST_WRITES = "last writes"
    ALL = "all"


@dataclass(frozen=True)
class Loss:
    """What Redis itself lost: entries that were read and are gone, and what users did that it forgot.

    Attributes:
        entries: how many.
        users: how many.
        wrong: what was told of these users that was not due, or was not told.
    """

    entries: int
    users: int
    wrong: Verdict = field(default_factory=Verdict)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} x {what}" for what, count in sorted(self.wrong.wrong.items()))
        return f"Redis lost {self.entries} entries, and doings of {self.users} users ({kinds or 'none seen'})"


def weigh(
    expected: Expected,
    seen: Sequence[Event],
    kept: Sequence[Event],
    forgets: Forgets = Forgets.NOTHING,
    excused: frozenset[str] = frozenset(),
) -> tuple[Verdict, Loss | None]:
    """Judge the events; return what was wrong, and what Redis lost, None if it was to lose nothing.

    Args:
        expected: everybody who was there, and what has to be told of him; of a Redis that forgets all, what
            has to stand in the streams in the end.
        seen: what a subscriber read all the time.
        kept: what stands in the streams in the end.
        forgets: what may be lost.
        excused: who did something among the last writes. These, and those of whom entries are lost, have to
            be told of as online and offline by turns, no more.
    """
    stands = {(event.uid, event.id) for event in kept}
    vanished = [event for event in seen if (event.uid, event.id) not in stands]
    if forgets is Forgets.ALL:
        return judge(expected, kept), Loss(len(vanished), len(expected))
    if forgets is Forgets.NOTHING:
        verdict = judge(expected, seen)
        for event in vanished:
            verdict.note("event that Redis has no more", event)
        return verdict, None
    touched = excused | {event.uid for event in vanished}
    strict = {uid: due for uid, due in expected.items() if uid not in touched}
    verdict = judge(strict, [event for event in kept if event.uid not in touched])
    judge_order(verdict, touched, kept)
    rest = {uid: due for uid, due in expected.items() if uid in touched}
    wrong = judge(rest, [event for event in kept if event.uid in touched])
    return verdict, Loss(len(vanished), len(touched), wrong)
