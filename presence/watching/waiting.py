"""Watch requests that are not answered yet: pure, time is an argument.

A request waits for the states of some users. It is complete when all are there, and then answered in its
turn; it is refused when its time is up before, and forgotten when its session has left. What its session has
unwatched meanwhile is answered all the same, and not watched.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from presence.registry import Session


@dataclass(eq=False, slots=True)
class Waiter:
    """A request that waits.

    Attributes:
        session: who asks.
        id: of the packet.
        uids: whom about; each once.
        deadline: monotonic seconds.
        unwatched: users whom the session wants to watch no more.
    """

    session: Session
    id: int | None
    uids: list[str]
    deadline: float
    unwatched: set[str] = field(default_factory=set)

    @property
    def wanted(self) -> Iterator[str]:
        """Whom the session still wants to watch."""
        return (uid for uid in self.uids if uid not in self.unwatched)


class Waiting:
    """All requests that wait.

    Attributes:
        uids: of how many users states are waited for, those of each request counted.
    """

    def __init__(self) -> None:
        self._for: dict[str, dict[Waiter, None]] = {}  # in order
        self._of: dict[Session, list[Waiter]] = {}
        self._by_age: deque[Waiter] = deque()  # incomplete when added; may be answered by now
        self._missing: dict[Waiter, set[str]] = {}
        self.uids = 0

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._missing)

    def is_awaited(self, uid: str) -> bool:
        """Whether a request that waits is about a user."""
        return uid in self._for

    def of(self, session: Session) -> set[str]:
        """Return whom a session will watch when its requests are answered."""
        return {uid for waiter in self._of.get(session, ()) for uid in waiter.wanted}

    def add(self, waiter: Waiter, missing: Iterable[str]) -> None:
        """Let a request wait for users of its own; its deadline is no sooner than that of the one before."""
        self._missing[waiter] = set(missing)
        self._of.setdefault(waiter.session, []).append(waiter)
        if self._missing[waiter]:
            self._by_age.append(waiter)
        self.uids += len(waiter.uids)
        for uid in waiter.uids:
            self._for.setdefault(uid, {})[waiter] = None

    def uids_of(self, session: Session) -> int:
        """Return of how many users the requests of a session are, those of each counted."""
        return sum(len(waiter.uids) for waiter in self._of.get(session, ()))

    def came(self, uid: str) -> list[Waiter]:
        """The state of a user is known; return the requests that are complete with it, to be taken."""
        complete = []
        for waiter in self._for.get(uid, ()):
            missing = self._missing[waiter]
            if uid in missing:
                missing.discard(uid)
                if not missing:
                    complete.append(waiter)
        return complete

    def take(self, waiter: Waiter) -> bool:
        """Take out a request to answer it; False: its session has left meanwhile."""
        if waiter not in self._missing:
            return False
        self._take_out(waiter)
        return True

    def unwatch(self, session: Session, uids: Iterable[str] | None) -> None:
        """A session does not want to watch these any more; None: nobody."""
        gone = None if uids is None else set(uids)
        for waiter in self._of.get(session, ()):
            waiter.unwatched.update(waiter.uids if gone is None else gone.intersection(waiter.uids))

    def overdue(self, now: float) -> Waiter | None:
        """Take out and return the oldest request that is not complete, if its time is up."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return None
        waiter = self._by_age.popleft()
        self._take_out(waiter)
        return waiter

    def next_deadline(self) -> float | None:
        """Return when the time of the oldest request is up."""
        while self._by_age and not self._missing.get(self._by_age[0]):
            self._by_age.popleft()
        return self._by_age[0].deadline if self._by_age else None

    def left(self, session: Session) -> list[Waiter]:
        """Take out and return the requests of a session."""
        gone = list(self._of.get(session, ()))
        for waiter in gone:
            self._take_out(waiter)
        return gone

    def _take_out(self, waiter: Waiter) -> None:
        del self._missing[waiter]
        self.uids -= len(waiter.uids)
        mine = self._of[waiter.session]
        mine.remove(waiter)
        if not mine:
            del self._of[waiter.session]
        for uid in waiter.uids:
            awaiting = self._for[uid]
            del awaiting[waiter]
            if not awaiting:
                del self._for[uid]
