"""Compares each event with what that client truly did: pure, so that tests show what it would notice.

A period begins with no client online and ends with all silent. In it each client logs in, sends
keepalives and falls silent; so there must be one online event of each, then one offline event, for silence,
of the session that the client had, neither before the client was silent for T nor later than promised.

Moments are monotonic seconds, of one machine. The time of a decision is known in Unix ms of the server's
clock, which is the wall clock as it stood at the server's start; so it is known between two bounds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.checker import Periods
from loadtest.outcome import BrokenPromises
from loadtest.stream_events import StreamEvent
from presence.protocol import Code

RACE_S = 0.1  # a packet this close to a decision was in a race with it


class LastPacket(NamedTuple):
    """A client's name and session, and when its last packet and the one before were sent."""

    uid: str
    session: str
    sent_at: float
    previous_at: float


@dataclass(frozen=True)
class ScaleDeadlines:
    """What the server promises: T, tick and the slack for the way through Redis, in seconds."""

    idle_timeout: float = 30.0
    tick: float = 1.0
    slack: float = 1.0

    @property
    def delay_max(self) -> float:
        """The longest time from the last packet to the event."""
        return self.idle_timeout + self.tick + self.slack


@dataclass
class Ends(BrokenPromises):
    """The offline events of a period.

    Attributes:
        clients: that were logged in.
        offline: offline events that are right.
        decided_s, written_s, read_s: seconds from a client's last packet to the decision, to the event in the
            stream, to its reading; of events that are right or late.
        first_to_last_s: between the first and the last offline event in the stream.
    """

    clients: int = 0
    offline: int = 0
    decided_s: list[float] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    first_to_last_s: float = 0.0


def judge(truths: Sequence[LastPacket], events: Iterable[StreamEvent], promise: ScaleDeadlines) -> Ends:
    """Compare the events of a period, in order, with what the clients did in it.

    Args:
        truths: of the clients that were logged in, after all had fallen silent.
    """
    ends = Ends(clients=len(truths))
    known = {truth.uid: truth for truth in truths}
    periods = Periods()
    reported: dict[str, set[str]] = {"online": set(), "offline": set()}
    written_at: list[float] = []
    for event in events:
        truth = known.get(event.uid)
        if event.type not in reported:
            ends.note(f"event of type {event.type}", event)
        elif truth is None:
            ends.note("event of an unknown user", event)
        elif event.type == "online":
            reported["online"].add(event.uid)
            for broken in periods.user_online(event.uid, event.session, event.id, event.written_at):
                ends.note(f"event {broken.rule}", broken.text)
        else:
            wrong = periods.user_offline(event.uid, event.session, event.since_id)
            for broken in wrong:
                ends.note(f"event {broken.rule}", broken.text)
            if event.uid not in reported["offline"]:
                reported["offline"].add(event.uid)
                written_at.append(event.written_at)
                if not wrong:
                    _judge_end(ends, truth, event, promise)
    for kind, uids in reported.items():
        for uid in known.keys() - uids:
            ends.note(f"{kind} event lost", uid)
    if written_at:
        ends.first_to_last_s = max(written_at) - min(written_at)
    return ends


def _judge_end(ends: Ends, truth: LastPacket, event: StreamEvent, promise: ScaleDeadlines) -> None:
    """Judge the first offline event of a client."""
    _, decided = event.decided_between
    # A keepalive may be on its way while its session ends for a silence before it.
    last = truth.sent_at if truth.sent_at <= decided - RACE_S else truth.previous_at
    if event.session != truth.session:
        ends.note("offline event of another session", (truth, event))
    elif event.code != Code.IDLE_TIMEOUT:
        ends.note("offline event for another reason", (truth, event))
    elif decided < last + promise.idle_timeout:
        ends.note("false offline event", (truth, event))
    else:
        ends.decided_s.append(decided - last)
        ends.written_s.append(event.written_at - last)
        ends.read_s.append(event.read_at - last)
        if event.read_at - last > promise.delay_max:
            ends.note("offline event late", (truth, event))
        else:
            ends.offline += 1
