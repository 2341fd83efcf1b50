"""Sessions whose deadline has passed: taken from the wheels in batches, read once more, then handed out.

A batch is checked again when it is handed out: a packet found by the read has put its session back into the
wheel, and a new token has extended its expiry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from presence.core.engine_counters import EngineCounters
from presence.core.registry import Session
from presence.core.sessions import NOTHING_DUE, Sessions

MAX_EXPIRED_PER_TURN: Final = 256  # sessions of each kind before other tasks run: a few milliseconds


@dataclass(eq=False, repr=False)
class ExpiryBatch:
    """The sessions that are due now; one batch at a time."""

    sessions: Sessions  # the live sessions and their deadlines
    counters: EngineCounters  # the engine's counters
    poll_before_expiry: bool = True  # whether connections are read once more; tests switch it off
    # whether some connections of the batch are read by tasks of their own, which need a turn
    needs_reader_turn: bool = False

    def __post_init__(self) -> None:
        self._registry = self.sessions.registry
        self._batch = NOTHING_DUE

    def collect(self, slot: int, now: float) -> bool:
        """Collect the next batch, and read its connections; return whether more may be due."""
        self.needs_reader_turn = False
        batch = self._batch = self.sessions.pop_due(slot, now, MAX_EXPIRED_PER_TURN)
        if self.poll_before_expiry:
            for session in [*batch.idle, *batch.inattentive, *batch.token_expired]:
                if session.transport is not None and not session.transport.poll_now(session.handle):
                    self.needs_reader_turn = True
        return batch.more

    def idle_sessions(self) -> Iterator[Session]:
        """Yield sessions of the batch that are still idle; the caller ends each before it takes the next."""
        for session in self._batch.idle:
            if session not in self._registry:
                continue
            if not self.sessions.is_idle(session):
                self.counters.saved_by_poll += 1
                continue
            yield session

    def inattentive_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent nothing but keepalives."""
        for session in self._batch.inattentive:
            if session in self._registry and self.sessions.is_inattentive(session):
                yield session

    def token_expired_sessions(self) -> Iterator[Session]:
        """Yield live sessions of the batch that sent no new token."""
        for session in self._batch.token_expired:
            if session in self._registry and self.sessions.has_expired_token(session):
                yield session

    def status_ended_sessions(self) -> Iterator[Session]:
        for session in self._batch.status_ended:
            if session in self._registry and self.sessions.has_ended_status(session):
                yield session

    def clear(self) -> None:
        self._batch = NOTHING_DUE
