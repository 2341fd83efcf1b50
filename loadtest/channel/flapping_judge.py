"""What was told of clients who drop and return, held against what they did: pure.

While a client returns within its grace nothing is told. An absence for longer than that is one offline event,
neither before the grace was over nor later than promised, and one online event for the return. Of a client
who flapped the grace is longer than it was set, and the event says how long it was.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from loadtest.channel.entries import Entry
from loadtest.outcome import Verdict
from protocol import Code

ROUNDED_MS = 2.0  # the server's milliseconds, and those of the wall clock beside the monotonic one


class Life(NamedTuple):
    """What a client did; moments are Unix ms.

    Attributes:
        drops: how often the connection was dropped and was back within the grace.
        heard_ms: when the last packet before the absence was sent.
        left_ms: when the connection was dropped for longer.
        back_ms: when the client logged in again.
        flapped: whether it returned so often that its grace has to be longer than it was set; None: to
            several servers, of which each saw a part.
    """

    drops: int
    heard_ms: float
    left_ms: float
    back_ms: float
    flapped: bool | None


class Promise(NamedTuple):
    """The server's settings, and what is allowed for the way into the stream; all ms."""

    grace: float
    grace_max: float
    idle_timeout: float
    tick: float
    slack: float = 1000.0


def judge(
    lives: Mapping[str, Life], entries: Mapping[str, Sequence[Entry]], promise: Promise
) -> tuple[Verdict, list[float]]:
    """Judge a run that is over.

    Returns:
        The verdict, and the graces of those who flapped as their events name them, ms.
    """
    verdict = Verdict()
    graces: list[float] = []
    for uid, life in lives.items():
        told = entries.get(uid, ())
        types = [entry.fields["type"] for entry in told]
        story = f"{uid}: {life}, told {[(entry.at_ms, *entry.fields.values()) for entry in told]}"
        if any(entry.at_ms < life.left_ms for entry in told[1:]):
            verdict.note("event while the client returned within its grace", story)
            continue
        if types != ["online", "offline", "online"]:
            if "offline" not in types:
                verdict.note("no offline event of the long absence", story)
            elif types.count("online") < 2:
                verdict.note("no online event of the return", story)
            else:
                verdict.note("more than one offline and one online event", story)
            continue
        online, offline, again = told
        if offline.code != Code.CLOSED or again.code != Code.LOGIN:
            verdict.note("event for another reason", story)
        if offline.fields.get("since_id") != online.state["id"]:
            verdict.note("since_id is not that of the online event", story)
        graces += _judge_grace(verdict, life, offline, promise, story)
    return verdict, graces


def _judge_grace(
    verdict: Verdict, life: Life, offline: Entry, promise: Promise, story: str
) -> Sequence[float]:
    """Judge when the offline event came, and return the grace that it names."""
    named = float(offline.fields.get("grace_ms") or 0)
    if life.flapped and not named:
        verdict.note("a flapping client's event names no longer grace", story)
    elif life.flapped is False and named:
        verdict.note("a calm client's event names a longer grace", story)
    grace = named or promise.grace
    if named and not promise.grace < grace <= promise.grace_max:
        verdict.note("a grace out of its bounds", story)
    due = min(life.left_ms + grace, life.heard_ms + promise.idle_timeout)
    if offline.at_ms < due - ROUNDED_MS:
        verdict.note("offline within the grace", story)
    if offline.at_ms > due + promise.tick + promise.slack:
        verdict.note("offline later than promised", story)
    return [named] if named else []
