"""What a worker answers to operators' questions about a user, by kind of question; read-only.

An answer is sent over the stats socket or through Redis, so it is bounded plain data. Times are Unix
milliseconds, differences are seconds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, Protocol

from presence.common.clock import Clock
from presence.core.changes import Change
from presence.core.engine import Engine
from presence.core.registry import ConnectionInfo, Handle, Session
from presence.protocol import Code
from presence.store.questions import QuestionKind

# Each packs to some 2,100 bytes at most: `meta` and `private` of empty binaries grow from 256 to 880.
MAX_SESSIONS_REPORTED: Final = 20
MAX_ENDS_REPORTED: Final = 8  # and each of these to some 300,
MAX_ROOMS_REPORTED: Final = 64  # of all sessions, and each of these to some 160: together less than 60 KB


AnswerFunctions = Mapping[QuestionKind, Callable[[str], object]]
"""By kind of question: takes a uid, and returns what MessagePack can encode."""


class WatchCounts(Protocol):
    """The watches of this node's sessions, as far as answers tell of them."""

    def watches(self, session: Session) -> int:
        """Return the number of users that a session watches."""

    def roster_watch(self, session: Session) -> Literal["requested", "followed"] | None:
        """Whether a session follows its user's roster; ``requested``: it waits until the roster is read."""

    def watched_rooms(self, session: Session) -> int:
        """Return the number of rooms that a session watches."""

    def rooms_sent(self, session: Session, most: int) -> Sequence[object]:
        """Return what a session was sent of at most so many rooms that it watches."""

    def is_behind_on_rooms(self, session: Session) -> bool:
        """Whether a session is sent changes of rooms when it can take them."""


@dataclass(frozen=True)
class QuestionAnswers:
    """Answers questions about the users of one node."""

    engine: Engine
    clock: Clock
    node: Callable[[], str]  # returns the current node id
    pending_changes: Callable[[], int]  # number of changes that wait for Redis
    # returns what the transport knows about a connection, by its handle; None: nothing
    connected: Callable[[Handle], ConnectionInfo | None]
    watching: WatchCounts
    # returns a user's recently ended sessions, the latest first, given the monotonic time
    ended: Callable[[str, float], Sequence[Change]] = lambda _uid, _now: ()

    @property
    def by_kind(self) -> AnswerFunctions:
        """What answers each kind of question."""
        return {QuestionKind.EXPLAIN: self.explain}

    def explain(self, uid: str) -> dict[str, object]:
        """Return ``{node, at_ms, outbox, more, sessions, ended}`` of a user, any text.

        `outbox` is the number of changes of all users that wait for Redis, `more` the number of sessions left
        out, `ended` the recently ended sessions, the latest first. See `presence.ops.explain`.
        """
        now = self.clock.now()
        sessions = self.engine.registry.sessions_of(uid)
        reports = [self._session(session, now) for session in islice(sessions, MAX_SESSIONS_REPORTED)]
        most_rooms = MAX_ROOMS_REPORTED
        for session, report in zip(sessions, reports, strict=False):
            report["rooms"] = rooms = self.watching.rooms_sent(session, most_rooms)
            most_rooms -= len(rooms)
        return {
            "node": self.node(),
            "at_ms": self.clock.seen_ms(now),
            "outbox": self.pending_changes(),
            "more": max(0, len(sessions) - MAX_SESSIONS_REPORTED),
            "sessions": reports,
            "ended": [_end(change) for change in islice(self.ended(uid, now), MAX_ENDS_REPORTED)],
        }

    def _session(self, session: Session, now: float) -> dict[str, object]:
        clock, registry = self.clock, self.engine.registry
        at = self.engine.sessions.timers(session)
        connected = None if session.transport is None else self.connected(session.handle)
        profile = registry.profiles.get(session.number)
        report: dict[str, object] = {
            "device": session.device,
            "session": registry.session_id(session),
            "node": self.node(),
            "link": "lost" if session.transport is None else "connected",
            "address": (connected.address or None) if connected else None,
            "transport": connected.transport if connected else None,
            "login_ms": clock.seen_ms(session.login_at),
            "last_packet_ms": clock.seen_ms(session.last_seen),
            "last_packet_age_s": _seconds(now, session.last_seen),
            "idle_timeout_s": session.idle_timeout,
            "deadline_ms": clock.decided_ms(session.last_seen + session.idle_timeout),
            "slot": at.slot,
            "slot_s": at.slot_s,
            "slots_from_hand": None if at.slot is None else at.slot - at.passed_slot,
            "due_ms": None if at.due_at is None else clock.decided_ms(at.due_at),
            "due_in_s": _seconds(at.due_at, now),
            "ends_as": {"code": int(session.end_code), "reason": session.end_code.reason},
            "status": profile.status,
            "away_in_s": None if profile.status == "away" else _seconds(at.away_at, now),
            "token_expires_in_s": _seconds(at.token_ends_at, now),
            "unsent_bytes": connected.unsent_bytes if connected else None,
            "watches": self.watching.watches(session),
            "watched_rooms": self.watching.watched_rooms(session),
            "behind_on_rooms": self.watching.is_behind_on_rooms(session),
            "roster": self.watching.roster_watch(session),
            "roster_claimed": len(self.engine.claimed_rosters.get(session, "").split()),
            "quiet": session in self.engine.quiet.sessions,
            "vouched": self.engine.registration.is_registrable(session),
        }
        for name in ("meta", "private"):
            if text := getattr(profile, name):
                report[name] = json.loads(text)
        return report


def _end(change: Change) -> dict[str, object]:
    return {
        "device": change.device,
        "session": change.session,
        "code": change.code,
        "reason": Code(change.code).reason,
        "at_ms": change.at_ms,
        "last_packet_ms": change.last_seen_ms,
        "idle_timeout_s": change.idle_timeout_ms / 1000,
        "deadline_ms": change.last_seen_ms + change.idle_timeout_ms,
    }


def _seconds(later: float | None, earlier: float) -> float | None:
    return None if later is None else round(later - earlier, 3)
