"""What is due: who was silent for too long, whom nobody uses, whose token has ended.

All of it is taken in slices, and each slice twice: at first its connections are read once more, then whoever
is still due is handed out. What came in between has put its session back into the wheel, or among the tokens.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from presence.auth.expiries import Expiries
from presence.registry import Registry, Session, SessionKey
from presence.wheel import TimingWheel

SLICE: Final = 256  # sessions that end without a turn for others: a few milliseconds


class Due:
    """The slice of those who are due.

    Args:
        registry: who is here.
        wheel: when whoever is silent ends.
        attention: when whoever is idle is away by itself.
        expiries: when whose token ends.
        look: whether connections are read once more.

    Attributes:
        look: as above.
        awaits_readers: whether tasks of their own read some of these connections, and need a turn to do so.
        saved: sessions that were heard of in the last moment, since the start.
    """

    def __init__(
        self,
        registry: Registry,
        wheel: TimingWheel[SessionKey],
        attention: TimingWheel[SessionKey],
        expiries: Expiries[SessionKey],
        *,
        look: bool,
    ) -> None:
        self._registry = registry
        self._wheel = wheel
        self._attention = attention
        self._expiries = expiries
        self._silent: list[Session] = []
        self._inattentive: list[Session] = []
        self._expired: list[Session] = []
        self.look = look
        self.awaits_readers = False
        self.saved = 0

    def take(self, tick: int, now: float) -> bool:
        """Take the next slice, and read its connections; return whether more may be due."""
        keys, idle = self._wheel.expire(tick, SLICE), self._attention.expire(tick, SLICE)
        expired, more_expired = self._expiries.take(now, SLICE)
        self.awaits_readers = False
        self.clear()
        self._silent, self._inattentive, self._expired = map(self._sessions, (keys, idle, expired))
        if self.look:
            for session in [*self._silent, *self._inattentive, *self._expired]:
                if session.link is not None and not session.link.look(session.handle):
                    self.awaits_readers = True
        return bool(keys or idle) or more_expired

    def _sessions(self, keys: Iterable[SessionKey]) -> list[Session]:
        return [session for key in keys if (session := self._registry.get(key)) is not None]

    def silent(self) -> Iterator[Session]:
        """Give those that nothing was heard of; the caller ends each before it asks for the next."""
        for session in self._silent:
            if session not in self._registry:
                continue
            if session.key in self._wheel:
                self.saved += 1
                continue
            yield session

    def inattentive(self) -> Iterator[Session]:
        """Give those that live and have said nothing but keepalives."""
        for session in self._inattentive:
            if session in self._registry and session.key not in self._attention:
                yield session

    def expired(self) -> Iterator[Session]:
        """Give those that live and have sent no fresh token."""
        for session in self._expired:
            if session in self._registry and session.key not in self._expiries:
                yield session

    def clear(self) -> None:
        """The slice is done with."""
        self._silent, self._inattentive, self._expired = [], [], []
