"""Live sessions and their deadlines: the registry and four wheels, kept in step.

Nothing else adds or removes sessions or deadlines. So a live session is in the wheel of idle time-outs,
unless it has just been popped as due, and a session that has ended is in none of the wheels.

Methods that change what Redis has to know return the change. Times are monotonic seconds.
"""

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from presence.core.changes import Change
from presence.core.deadline_wheel import DeadlineWheel
from presence.core.profiles import ProfileChange
from presence.core.registry import Guest, LoginResult, NewSession, Registry, Session, SessionKey
from presence.core.slots import SlotClock
from presence.core.wheel import TimingWheel
from presence.protocol import Code

SPARE_SLOTS: Final = 3  # deadlines are rounded up to a slot, and the first slots may be overdue
MAX_REPORTED_SLOTS: Final = 1200  # ten minutes of slots of 0.5 s: some 4 KB, and 0.1 ms to count


class DueSessions(NamedTuple):
    """Sessions with a deadline that has passed."""

    idle: list[Session]  # sent nothing for their idle time-out, or their grace is over
    inattentive: list[Session]  # sent nothing but keepalives for `away_after`
    token_expired: list[Session]  # sent no new token
    status_ended: list[Session]  # had a status with an end


class SessionTimers(NamedTuple):
    """A session's deadlines."""

    # the wheel's absolute slot in which it is due; None: it has expired, and is being ended
    slot: int | None
    passed_slot: int  # the last slot that has passed, and holds no session
    slot_s: float  # seconds that a slot covers
    due_at: float | None  # when its slot begins; None without one
    away_at: float | None  # when it is shown as away, if nothing but keepalives comes; None: never
    token_ends_at: float | None  # when its token expires, rounded up to a slot; None without a token


class Sessions:
    """All live sessions of this process, with their deadlines.

    Args:
        registry: the sessions by key; read-only for everything else.
        slot_clock: converts time to slots of the wheels.
        now: the present time.
        idle_timeout: T, seconds, of a session that requested no other.
        max_idle_timeout: seconds; with it and `away_after` the rings need not grow.
        away_after: seconds with nothing but keepalives after which a session is shown as away; 0: never.
    """

    def __init__(
        self,
        registry: Registry,
        slot_clock: SlotClock,
        now: float,
        *,
        idle_timeout: float,
        max_idle_timeout: float = 0.0,
        away_after: float = 0.0,
    ) -> None:
        self.registry = registry
        self.idle_timeout = idle_timeout
        self._slot_clock = slot_clock
        self._away_after = away_after
        slots = int(max(idle_timeout, max_idle_timeout, away_after) / slot_clock.slot_s) + 2
        cursor = slot_clock.at_or_before(now)
        self._idle_wheel: TimingWheel[SessionKey] = TimingWheel(slots, cursor)
        self._away_wheel: TimingWheel[SessionKey] = TimingWheel(slots if away_after else 0, cursor)
        self._token_wheel: DeadlineWheel[SessionKey] = DeadlineWheel(now)
        self._status_wheel: DeadlineWheel[SessionKey] = DeadlineWheel(now)

    def login(self, guest: Guest, new: NewSession, now: float) -> LoginResult:
        """Make the guest a session, in place of the same device's older one, and set its deadlines."""
        result = self.registry.login(guest, new, now)
        key = new.key
        self._idle_wheel.touch(key, self._slot_clock.at_or_after(now + new.idle_timeout))
        if self._away_after:
            self._away_wheel.touch(key, self._slot_clock.at_or_after(now + self._away_after))
        if new.expires_at is not None:
            self._token_wheel.set(key, new.expires_at)
        if new.status_ends_at is not None:
            self._status_wheel.set(key, new.status_ends_at)
        elif self._status_wheel:  # of the session that this one replaces
            self._status_wheel.discard(key)
        return result

    def update(
        self,
        session: Session,
        now: float,
        change: ProfileChange,
        status_ends_at: float | None = None,
        idle_timeout: float | None = None,
    ) -> Change | None:
        """Update a live session's profile and idle time-out, which counts from now on; None: no change."""
        if status_ends_at is not None:
            self._status_wheel.set(session.key, status_ends_at)
        elif change.status is not None:
            self._status_wheel.discard(session.key)
        updated = self.registry.update(session, now, change, idle_timeout)
        if idle_timeout is not None:
            self.packet_received(session, now)
        return updated

    def packet_received(self, session: Session, now: float) -> None:
        """Extend a live session that sent a packet."""
        session.last_seen = now
        self._idle_wheel.touch(session.key, self._slot_clock.at_or_after(now + session.idle_timeout))

    def keepalives_received(
        self, sessions: Iterable[Session], now: float, since: float = math.inf
    ) -> tuple[int, list[Session]]:
        """Extend sessions that sent exactly one keepalive each.

        A session that has lost its connection since is skipped, because its key may belong to another session
        by now, or to none.

        Returns:
            How many were extended, and those of which another packet was read after `since`.
        """
        usual, extended, keys = self.idle_timeout, 0, []
        frequent: list[Session] = []
        for session in sessions:
            if session.transport is None:
                continue
            if session.last_seen > since:
                frequent.append(session)
            session.last_seen = now
            if session.idle_timeout == usual:
                keys.append(session.key)
            else:
                self._idle_wheel.touch(session.key, self._slot_clock.at_or_after(now + session.idle_timeout))
                extended += 1
        if keys:
            self._idle_wheel.touch_all(keys, self._slot_clock.at_or_after(now + usual))
        return extended + len(keys), frequent

    def user_active(self, session: Session, now: float) -> Change | None:
        """Record that a live session's user was active; ends auto-away."""
        if self._away_after:
            self._away_wheel.touch(session.key, self._slot_clock.at_or_after(now + self._away_after))
        return self.registry.clear_auto_away(session, now)

    def end_status(self, session: Session, now: float) -> Change | None:
        """End a status whose end has come; auto-away counts from now on if it was due before."""
        if self._away_after and session.key not in self._away_wheel:
            self._away_wheel.touch(session.key, self._slot_clock.at_or_after(now + self._away_after))
        return self.registry.end_status(session, now)

    def token_renewed(self, session: Session, expires_at: float) -> None:
        self._token_wheel.set(session.key, expires_at)

    def begin_grace(self, session: Session, grace: float, now: float) -> None:
        """Have a live session end in `grace` seconds, unless its idle time-out comes first."""
        idle_slot = self._idle_wheel.slot_of(session.key)
        if idle_slot is not None:  # None: it has expired, and is in the batch that ends now
            self._idle_wheel.touch(session.key, min(idle_slot, self._slot_clock.at_or_after(now + grace)))

    def end(self, session: Session, code: Code, now: float) -> Change | None:
        """Remove a session; None if it was superseded or has ended before."""
        change = self.registry.end(session, code, now)
        if change is not None:
            self._idle_wheel.discard(session.key)
            if self._token_wheel:
                self._token_wheel.discard(session.key)
            if self._away_wheel:
                self._away_wheel.discard(session.key)
            if self._status_wheel:
                self._status_wheel.discard(session.key)
        return change

    def pop_due(self, slot: int, now: float, limit: int) -> DueSessions | None:
        """Take sessions that are due out of the wheels.

        Before the caller acts on one it asks again, with `is_idle` and the like: the session may have ended
        since, or a packet or a token that has arrived has put it back into its wheel.

        Args:
            slot: the last that has begun, of idle time-outs and auto-away, which a stall postpones.
            now: of ends of tokens and statuses, which nothing postpones.
            limit: of each kind.

        Returns:
            The sessions; None: no more are due. All lists may be empty although more are due, if the ends of
            tokens and statuses that were examined come later; see `DeadlineWheel.pop_due`.
        """
        idle = self._idle_wheel.pop_due(slot, limit)  # empty: no more are due; below, of times, that is None
        inattentive = self._away_wheel.pop_due(slot, limit)
        token_expired = self._token_wheel.pop_due(now, limit)
        status_ended = self._status_wheel.pop_due(now, limit)
        if not idle and not inattentive and token_expired is None and status_ended is None:
            return None
        live = self._live
        return DueSessions(live(idle), live(inattentive), live(token_expired or ()), live(status_ended or ()))

    def _live(self, keys: Iterable[SessionKey]) -> list[Session]:
        return [session for key in keys if (session := self.registry.get(key)) is not None]

    def is_idle(self, session: Session) -> bool:
        """Whether a live session that was popped as idle has sent nothing since."""
        return session.key not in self._idle_wheel

    def is_inattentive(self, session: Session) -> bool:
        """Whether a session that was popped as inattentive is live, and has sent only keepalives since."""
        return session in self.registry and session.key not in self._away_wheel

    def has_expired_token(self, session: Session) -> bool:
        """Whether a session whose token expired is live, and has sent no new one since."""
        return session in self.registry and session.key not in self._token_wheel

    def has_ended_status(self, session: Session) -> bool:
        """Whether a session whose status ended is live, and has set no other with an end since."""
        return session in self.registry and session.key not in self._status_wheel

    @property
    def with_token(self) -> int:
        """Number of sessions with a token that expires."""
        return len(self._token_wheel)

    def slot_sizes(self, slots: int) -> list[int]:
        """Return how many sessions are due in each of the next slots, soonest first."""
        return self._idle_wheel.slot_sizes(slots)

    def upcoming_expirations(self, now: float) -> dict[str, Any]:
        """Return how many sessions are due in each of the next slots; O(slots).

        Returns:
            `slot_s`; `next_s`: seconds until the first of `sizes` is due, 0 if overdue; `sizes`: sessions in
            each of the next slots, soonest first, up to T; `later`: sessions that are due after these.
        """
        slot_s = self._slot_clock.slot_s
        sizes = self.slot_sizes(min(math.ceil(self.idle_timeout / slot_s) + SPARE_SLOTS, MAX_REPORTED_SLOTS))
        next_s = max(0.0, self._slot_clock.start_of(self._idle_wheel.cursor + 1) - now)
        return {
            "slot_s": slot_s,
            "next_s": next_s,
            "sizes": sizes,
            "later": len(self._idle_wheel) - sum(sizes),
        }

    def ends_at(self, session: Session) -> float:
        """Return when a session ends if nothing more is received from its client."""
        slot = self._idle_wheel.slot_of(session.key)
        return self._slot_clock.start_of(self._idle_wheel.cursor if slot is None else slot)

    def timers(self, session: Session) -> SessionTimers:
        slot, away = self._idle_wheel.slot_of(session.key), self._away_wheel.slot_of(session.key)
        return SessionTimers(
            slot,
            self._idle_wheel.cursor,
            self._slot_clock.slot_s,
            None if slot is None else self._slot_clock.start_of(slot),
            None if away is None else self._slot_clock.start_of(away),
            self._token_wheel.deadline_of(session.key),
        )
