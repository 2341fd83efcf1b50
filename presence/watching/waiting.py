"""Requests that are not answered yet.

A watch waits for the states of some users. It is complete when all are there, and then answered in its turn;
it is refused when its time is up before, and forgotten when its session has left. What its session has
unwatched meanwhile is answered all the same, and not watched.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import trio

from presence.common.faults import Faults
from presence.common.runtime import TrioWakeEvent
from presence.core.registry import Session


class Settleable(Protocol):
    """What waits until its time is up, or something else settles it."""

    @property
    def is_settled(self) -> bool:
        """Whether it does not wait any more."""


W = TypeVar("W", bound=Settleable)


class RequestTimeouts(Generic[W]):
    """Gives up what has waited for so many seconds, whatever a call to Redis is at.

    Args:
        seconds: the same for all.
        on_timeout: refuses one; mistakes in it are contained.
        work: the kind of work, see `Faults`.
    """

    def __init__(self, seconds: float, on_timeout: Callable[[W], None], faults: Faults, work: str) -> None:
        self._seconds, self._on_timeout, self._faults, self._work = seconds, on_timeout, faults, work
        self._by_age: deque[tuple[float, W]] = deque()  # some may be settled by now
        self._bell = TrioWakeEvent()

    def add(self, request: W) -> None:
        """Let one wait from now on."""
        self._by_age.append((trio.current_time() + self._seconds, request))
        if len(self._by_age) == 1:  # nobody's time is up before that of those who wait already
            self._bell.ring()

    async def run(self) -> None:
        """Give up for ever; cancel it to stop."""
        while True:
            while self._by_age and self._by_age[0][1].is_settled:
                self._by_age.popleft()
            left_s = self._by_age[0][0] - trio.current_time() if self._by_age else math.inf
            if left_s > 0:
                await self._bell.wait(left_s)
                continue
            with self._faults.contained(self._work):
                self._on_timeout(self._by_age.popleft()[1])
            await trio.lowlevel.checkpoint()  # thousands may expire together


@dataclass(eq=False, slots=True)
class PendingWatch:
    """A watch that waits."""

    session: Session
    id: int | None  # of the packet
    uids: list[str]  # whom about; each once
    missing: set[str]  # of these, whose states are not there yet
    unwatched: set[str] = field(default_factory=set)  # whom the session wants to watch no more
    is_over: bool = False  # answered, refused or forgotten

    @property
    def wanted(self) -> Iterator[str]:
        """Whom the session still wants to watch."""
        return (uid for uid in self.uids if uid not in self.unwatched)

    @property
    def is_settled(self) -> bool:
        """See `Settleable`: it is complete, if not over."""
        return self.is_over or not self.missing


class PendingWatches:
    """All watches that wait.

    Attributes:
        uids: of how many users states are waited for, those of each watch counted.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, dict[PendingWatch, None]] = {}  # in order
        self._by_session: dict[Session, list[PendingWatch]] = {}
        self._count = self.uids = 0

    def __len__(self) -> int:
        """Return how many watches wait."""
        return self._count

    def is_awaited(self, uid: str) -> bool:
        """Whether a watch that waits is about a user."""
        return uid in self._by_uid

    def wanted_by(self, session: Session) -> set[str]:
        """Return whom a session will watch when its requests are answered."""
        return {uid for watch in self._by_session.get(session, ()) for uid in watch.wanted}

    def count_uids(self, session: Session) -> int:
        """Return of how many users the watches of a session are, those of each counted."""
        return sum(len(watch.uids) for watch in self._by_session.get(session, ()))

    def add(self, watch: PendingWatch) -> None:
        """Let one wait."""
        self._by_session.setdefault(watch.session, []).append(watch)
        self._count += 1
        self.uids += len(watch.uids)
        for uid in watch.uids:
            self._by_uid.setdefault(uid, {})[watch] = None

    def resolve(self, uid: str) -> list[PendingWatch]:
        """The state of a user is known; return the watches that are complete with it, to be taken out."""
        complete = []
        for watch in self._by_uid.get(uid, ()):
            if uid in watch.missing:
                watch.missing.remove(uid)
                if not watch.missing:
                    complete.append(watch)
        return complete

    def unwatch(self, session: Session, uids: Iterable[str] | None) -> None:
        """A session does not want to watch these any more; None: nobody."""
        gone = None if uids is None else set(uids)
        for watch in self._by_session.get(session, ()):
            watch.unwatched.update(watch.uids if gone is None else gone.intersection(watch.uids))

    def remove_session(self, session: Session) -> list[str]:
        """Take out the watches of a session; return whom they are about."""
        gone = list(self._by_session.get(session, ()))
        for watch in gone:
            self.remove(watch)
        return [uid for watch in gone for uid in watch.uids]

    def remove(self, watch: PendingWatch) -> None:
        """Forget one that is not over yet."""
        watch.is_over = True
        self._count -= 1
        self.uids -= len(watch.uids)
        mine = self._by_session[watch.session]
        mine.remove(watch)
        if not mine:
            del self._by_session[watch.session]
        for uid in watch.uids:
            awaiting = self._by_uid[uid]
            del awaiting[watch]
            if not awaiting:
                del self._by_uid[uid]
