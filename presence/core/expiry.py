"""What happens to sessions with a deadline that has passed: the rules of the four wheels of `Sessions`.

    the deadline passes unless                        then
    T, or the grace     a packet comes; a return      the session ends, and its client is disconnected
    `away_after`        more than a keepalive comes   it is shown as away
    a status's end      another status is set         the status from before is back
    a token's end       a new token comes             its client is disconnected, with the usual grace

The ticker takes a batch, has its connections read once more, because a packet that waits there has come in
time, and then handles it. So each rule asks again: what was read meanwhile has put a session back into its
wheel, or has ended it.
"""

from collections.abc import Callable, Iterable
from typing import Final

from presence import protocol
from presence.common.clock import Clock
from presence.common.histogram import Histogram
from presence.core.changes import Change
from presence.core.engine_counters import EngineCounters
from presence.core.registry import Session
from presence.core.sessions import DueSessions, Sessions
from presence.core.termination import SessionTerminator
from presence.protocol import Code

MAX_EXPIRED_PER_TURN: Final = 256  # sessions of each kind before other tasks run: a few milliseconds

_IDLE_GOODBYE = protocol.encode(protocol.goodbye(Code.IDLE_TIMEOUT))
_EXPIRED_GOODBYE = protocol.encode(protocol.goodbye(Code.AUTH_EXPIRED))


class Expiry:
    """Takes what is due from the wheels, and handles it; no method waits.

    Args:
        sessions: the live sessions and their deadlines.
        terminator: ends sessions.
        report_update: takes the change of a session that is shown differently, or None.
        counters: the engine's.
        clock: monotonic time.
        poll_before_expiry: whether connections are read once more; tests switch it off.
        detection_delay: how late sessions end by idle time-out; see `LatencyHistograms.detection_delay`.
    """

    def __init__(
        self,
        sessions: Sessions,
        terminator: SessionTerminator,
        report_update: Callable[[Change | None], None],
        counters: EngineCounters,
        *,
        clock: Clock,
        poll_before_expiry: bool,
        detection_delay: Histogram,
    ) -> None:
        self._sessions = sessions
        self._registry = sessions.registry
        self._terminator = terminator
        self._report_update = report_update
        self._counters = counters
        self._clock = clock
        self._poll_before_expiry = poll_before_expiry
        self._detection_delay = detection_delay

    def collect(self, slot: int) -> DueSessions | None:
        """Take a batch of sessions that are due up to `slot`; None: no more are."""
        return self._sessions.pop_due(slot, self._clock.now(), MAX_EXPIRED_PER_TURN)

    def poll(self, due: DueSessions) -> bool:
        """Read the connections of a batch once more.

        Returns:
            Whether some are read by tasks of their own, which need a turn before the batch is handled.
        """
        needs_reader_turn = False
        if self._poll_before_expiry:
            for session in (*due.idle, *due.inattentive, *due.token_expired):
                if session.transport is not None and not session.transport.poll_now(session.handle):
                    needs_reader_turn = True
        return needs_reader_turn

    def handle(self, due: DueSessions) -> int:
        """Do what is due for each session of a batch that was not rescued; return how many have ended."""
        now = self._clock.now()
        ended = self._end_idle(due.idle, now)
        self._set_away(due.inattentive, now)
        self._end_statuses(due.status_ended, now)
        self._disconnect_expired(due.token_expired)
        return ended

    def _end_idle(self, sessions: Iterable[Session], now: float) -> int:
        ended = 0
        for session in sessions:
            if session not in self._registry:
                continue
            if not self._sessions.is_idle(session):
                self._counters.saved_by_poll += 1
                continue
            if session.end_code is Code.IDLE_TIMEOUT:  # else its grace is over
                self._detection_delay.observe(now - session.last_seen - session.idle_timeout)
            self._terminator.end(session, session.end_code, now)
            self._terminator.disconnect(session, _IDLE_GOODBYE)
            ended += 1
        return ended

    def _set_away(self, sessions: Iterable[Session], now: float) -> None:
        for session in sessions:
            if self._sessions.is_inattentive(session):
                self._report_update(self._registry.set_auto_away(session, now))

    def _end_statuses(self, sessions: Iterable[Session], now: float) -> None:
        for session in sessions:
            if self._sessions.has_ended_status(session):
                self._report_update(self._sessions.end_status(session, now))

    def _disconnect_expired(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            # A session without a connection has its grace already.
            if self._sessions.has_expired_token(session) and session.transport is not None:
                self._counters.tokens_expired += 1
                self._terminator.disconnect_with_grace(session, Code.AUTH_EXPIRED, _EXPIRED_GOODBYE)
