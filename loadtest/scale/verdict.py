"""Each event held against what that client truly did: pure, so that made-up events show what it would notice.

A period begins with nobody online and ends with everybody silent. In it each client logs in, beats, falls
silent; so there must be one online event of each, then one offline event, for silence, of the session that
the client had, neither before the client was silent for T nor later than was promised.

Moments are monotonic seconds, of one machine. The time of a decision is known in Unix ms of the server's
clock, which is the wall clock as it stood at the server's start; so it is known between two bounds.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol import Code

EXAMPLES = 20  # broken promises told in full; all are counted
RACE_S = 0.1  # a packet this close to a decision was in a race with it
ROUNDED_S = 0.002  # the server's milliseconds and those of the wall clock's difference


class Truth(NamedTuple):
    """What a client did last: name, session, the moments before its last packet and the one before that."""

    uid: str
    session: str
    begun: float
    before: float


class Event(NamedTuple):
    """An entry of a stream, and when it was there.

    Attributes:
        since_id: of an offline event, the id of the online event that it ends; else empty.
        stood: when Redis took it into the stream, by Redis's clock.
        read: when this process had read it.
    """

    id: str
    type: str
    uid: str
    session: str
    code: int
    at_ms: int
    since_id: str
    stood: float
    read: float


class WallClock:
    """What the wall clock showed beside the monotonic clock during a run, in seconds of difference."""

    def __init__(self, difference: float) -> None:
        self.now = self.low = self.high = difference

    def sample(self, difference: float) -> None:
        """Take the difference as it is now."""
        self.now, self.low, self.high = difference, min(self.low, difference), max(self.high, difference)

    def latest(self, unix_ms: int) -> float:
        """Return the last monotonic moment at which any clock of this run may have shown it."""
        return unix_ms / 1000 - self.low + ROUNDED_S


@dataclass(frozen=True)
class Promise:
    """What the server promises: T, tick and what is allowed for the way through Redis, in seconds."""

    idle_timeout: float = 30.0
    tick: float = 1.0
    slack: float = 1.0

    @property
    def delay_max(self) -> float:
        """The longest time from the last packet to the event."""
        return self.idle_timeout + self.tick + self.slack


@dataclass
class Verdict:
    """What a period was like.

    Attributes:
        clients: that were logged in.
        offline: their offline events that are right.
        broken: how often each promise was, by its words.
        examples: the first of them in full.
        decided_s, stood_s, read_s: seconds from a client's last packet to the decision, to the event in the
            stream, to the event read; rising, of the events that are right or late.
        first_to_last_s: between the first and the last offline event in the stream.
    """

    clients: int
    offline: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    decided_s: "array[float]" = field(default_factory=lambda: array("d"))
    stood_s: "array[float]" = field(default_factory=lambda: array("d"))
    read_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_to_last_s: float = 0.0

    def note(self, broken: str, what: object) -> None:
        """A promise was broken."""
        self.broken[broken] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{broken}: {what}")


def judge(truths: Sequence[Truth], events: Iterable[Event], promise: Promise, clock: WallClock) -> Verdict:
    """Compare the events of a period with what the clients did in it.

    Args:
        truths: of the clients that were logged in, as they were when all had fallen silent.
        events: in the order of the stream.
        promise: what is due.
        clock: what the server's milliseconds mean.
    """
    verdict = Verdict(len(truths))
    known = {truth.uid: truth for truth in truths}
    online: dict[str, str] = {}
    offline: set[str] = set()
    stood: list[float] = []
    for event in events:
        truth = known.get(event.uid)
        if truth is None:
            verdict.note("event of somebody who was not there", event)
        elif event.type == "online":
            if event.uid in online:
                verdict.note("online event doubled", event)
            online[event.uid] = event.id
        elif event.type == "offline":
            if event.uid in offline:
                verdict.note("offline event doubled", event)
                continue
            offline.add(event.uid)
            stood.append(event.stood)
            _judge_end(verdict, truth, event, promise, clock, online.get(event.uid))
        else:
            verdict.note(f"event of type {event.type}", event)
    for uid in known:
        if uid not in online:
            verdict.note("online event lost", uid)
        if uid not in offline:
            verdict.note("offline event lost", uid)
    if stood:
        verdict.first_to_last_s = max(stood) - min(stood)
    for delays in ("decided_s", "stood_s", "read_s"):
        setattr(verdict, delays, array("d", sorted(getattr(verdict, delays))))
    return verdict


def _judge_end(
    verdict: Verdict, truth: Truth, event: Event, promise: Promise, clock: WallClock, online_id: str | None
) -> None:
    """Judge the first offline event of a client."""
    decided = clock.latest(event.at_ms)
    # A beat may be on its way while its session ends for a silence before it.
    last = truth.begun if truth.begun <= decided - RACE_S else truth.before
    if event.session != truth.session:
        verdict.note("offline event of another session", (truth, event))
    elif event.since_id != online_id:
        verdict.note("since_id is not that of the online event", (truth, event))
    elif event.code != Code.IDLE_TIMEOUT:
        verdict.note("offline event for another reason", (truth, event))
    elif decided < last + promise.idle_timeout:
        verdict.note("false offline event", (truth, event))
    else:
        verdict.decided_s.append(decided - last)
        verdict.stood_s.append(event.stood - last)
        verdict.read_s.append(event.read - last)
        if event.read - last > promise.delay_max:
            verdict.note("offline event late", (truth, event))
        else:
            verdict.offline += 1
