"""The events of a run held against what each client truly did: pure, so that made-up events can be judged."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from loadtest.scale.verdict import Event
from protocol import Code

EXAMPLES = 5  # broken promises told in full; all are counted


class Told(NamedTuple):
    """An event that has to come: its type, and the reason codes that are right."""

    type: str
    codes: frozenset[Code]


def told(type: str, *codes: Code) -> Told:
    """Return an event that is due, for one of these reasons."""
    return Told(type, frozenset(codes))


ONLINE = told("online", Code.LOGIN)
RETURNED = told("online", Code.RETURNED)
LOGGED_OUT = told("offline", Code.LOGOUT)
SILENT = told("offline", Code.IDLE_TIMEOUT)
NODE_DOWN = told("offline", Code.NODE_DOWN)

Expected = Mapping[str, Sequence[Told]]
"""By uid, what has to be told of him, in order."""


@dataclass
class Verdict:
    """What was wrong, by its words; the first cases in full."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, what: str, example: object) -> None:
        """Something is wrong."""
        self.wrong[what] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{what}: {example}")

    def count(self, what: str) -> int:
        """Return how often something was wrong whose words have `what` among them."""
        return sum(count for words, count in self.wrong.items() if what in words)

    @property
    def broken(self) -> list[str]:
        """What was wrong, in words with counts; nothing if all is as it has to be."""
        found = [f"{count:,} x {what}" for what, count in sorted(self.wrong.items())]
        return found and [*found, *self.examples]


def judge(expected: Expected, events: Iterable[Event]) -> Verdict:
    """Compare what was told with what was due, user by user.

    Args:
        expected: everybody who was there.
        events: everything that was told, in the order of the stream.
    """
    verdict = Verdict()
    found: dict[str, list[Event]] = {}
    for event in events:
        if event.type not in {"online", "offline"}:
            verdict.note(f"entry of type {event.type}", event)
        elif event.uid not in expected:
            verdict.note("event of somebody who was not there", event)
        else:
            found.setdefault(event.uid, []).append(event)
    for uid, due in expected.items():
        _judge_user(verdict, uid, due, found.get(uid, []))
    return verdict


def judge_order(verdict: Verdict, uids: Iterable[str], events: Iterable[Event]) -> None:
    """Note who of these is not told of as online and offline by turns, whatever is due."""
    found: dict[str, list[str]] = {uid: [] for uid in uids}
    for event in events:
        if event.uid in found:
            found[event.uid].append(event.type)
    for uid, types in found.items():
        if types != [("online", "offline")[n % 2] for n in range(len(types))]:
            verdict.note("events out of order", f"{uid}: {types}")


def _judge_user(verdict: Verdict, uid: str, due: Sequence[Told], events: Sequence[Event]) -> None:
    story = f"{uid}: due {[(each.type, *map(int, each.codes)) for each in due]}, told {list(events)}"
    for kind in ("online", "offline"):
        count = sum(event.type == kind for event in events)
        wanted = sum(each.type == kind for each in due)
        if count < wanted:
            verdict.note(f"{kind} event lost", story)
        elif count > wanted:
            verdict.note(f"{kind} event doubled" if wanted else f"false {kind} event", story)
    if [event.type for event in events] != [each.type for each in due]:
        if len(events) == len(due):
            verdict.note("events out of order", story)
        return
    for event, each in zip(events, due, strict=True):
        if event.code not in each.codes:
            verdict.note(f"{event.type} event for another reason", story)
    for online, offline in pairwise(events):
        if offline.type == "offline" and offline.since_id != online.id:
            verdict.note("since_id is not that of the online event", story)


def left_over(ghosts: Iterable[str], missing: Iterable[str]) -> list[str]:
    """Return in words how what Redis has at the end differs from the sessions that live."""
    counts = {"ghosts in Redis": len([*ghosts]), "live sessions missing in Redis": len([*missing])}
    return [f"{count:,} {what}" for what, count in counts.items() if count]


def spread(seconds: Iterable[float]) -> str:
    """Return median, 99th percentile and maximum, as text."""
    rising = sorted(seconds)
    if not rising:
        return "none"
    p50, p99 = rising[len(rising) // 2], rising[min(len(rising) - 1, len(rising) * 99 // 100)]
    return f"p50 {p50:.2f} p99 {p99:.2f} max {rising[-1]:.2f} s"
