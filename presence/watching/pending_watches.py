"""Pending watches, and time-outs of requests.

A watch waits for the states of some users. It is answered in its turn when all are known, refused when it
times out before, and dropped when its session disconnects. Users that the session unwatches meanwhile are in
the answer all the same, but are not watched.

Tests: `tests/watching/test_watch_service.py`.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Final, Generic, TypeVar

import trio

from presence.common.faults import Faults
from presence.common.runtime import TrioWakeEvent
from presence.core.registry import Session
from presence.watching.rosters import RosterFollower

W = TypeVar("W", bound=Hashable)

MAX_PENDING_BYTES: Final = 64_000_000  # memory of pending watches: 130,000 users with ordinary names
WATCH_BYTES: Final = 1_200  # memory of a watch beside its users
WATCH_USER_BYTES: Final = 400  # memory of a user of a watch beside the name


def memory_of(uids: Iterable[str]) -> int:
    """Return the memory of names in bytes: one character beyond ASCII makes all of a name wider."""
    return sum(map(getsizeof, uids))


def bytes_of_watch(uids: Collection[str]) -> int:
    """Return the approximate memory of a pending watch of some users, with those whom it may not see."""
    return WATCH_BYTES + len(uids) * WATCH_USER_BYTES + memory_of(uids)


class RequestTimeouts(Generic[W]):
    """Times out requests after a fixed number of seconds, even while a call to Redis hangs.

    `on_timeout` refuses a request; errors in it are contained, as of `work`, see `Faults`. Requests are told
    apart by identity, and are not kept when they have been discarded.
    """

    def __init__(self, seconds: float, on_timeout: Callable[[W], None], faults: Faults, work: str) -> None:
        self._seconds, self._on_timeout, self._faults, self._work = seconds, on_timeout, faults, work
        self._due_at: OrderedDict[W, float] = OrderedDict()  # oldest first
        self._bell = TrioWakeEvent()

    def add(self, request: W) -> None:
        self._due_at[request] = trio.current_time() + self._seconds
        if len(self._due_at) == 1:  # otherwise an earlier request times out first
            self._bell.set()

    def discard(self, request: W) -> None:
        self._due_at.pop(request, None)

    async def run(self) -> None:
        """Time out requests until cancelled."""
        while True:
            request, due_at = next(iter(self._due_at.items()), (None, math.inf))
            left_s = due_at - trio.current_time()
            if request is None or left_s > 0:
                await self._bell.wait(left_s)
                continue
            del self._due_at[request]
            with self._faults.contained(self._work):
                self._on_timeout(request)
            await trio.lowlevel.checkpoint()  # thousands may expire together


@dataclass(eq=False, slots=True)
class PendingWatch:
    session: Session
    id: int | None  # of the packet
    uids: list[str]  # to watch; each once
    missing: set[str]  # of these, users whose states are not known yet
    size_bytes: int  # see `bytes_of_watch`
    hidden: list[str] = field(default_factory=list)  # asked for, but not to be seen by this client for a time
    detail: bool = False  # with devices
    unwatched: set[str] = field(default_factory=set)  # of `uids`, unwatched by the session meanwhile
    is_over: bool = False  # answered, refused or dropped
    follower: RosterFollower | None = None  # of the roster that some of `uids` are from
    roster: frozenset[str] = frozenset()  # the users in that
    named: frozenset[str] = frozenset()  # beside a roster, the users that the client has named
    roster_size: int | None = None  # for the answer; None: the client has not asked for the roster
    is_silent: bool = False  # the roster has changed: there is no request, and so no answer

    @property
    def wanted(self) -> Iterator[str]:
        """The users that the session still wants to watch."""
        return (uid for uid in self.uids if uid not in self.unwatched)


class PendingWatches:
    """All pending watches.

    Attributes:
        bytes: the memory of all pending watches.
        users: how many users they ask for in total; one who is in several counts for each.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, dict[PendingWatch, None]] = {}  # in order
        self._by_session: dict[Session, list[PendingWatch]] = {}
        self._count = self.bytes = self.users = 0

    def __len__(self) -> int:
        return self._count

    def is_awaited(self, uid: str) -> bool:
        """Whether a pending watch includes a user."""
        return uid in self._by_uid

    def wanted_by(self, session: Session) -> set[str]:
        """Return the users that a session will watch when its watches are answered."""
        return {uid for watch in self._by_session.get(session, ()) for uid in watch.wanted}

    def rosters_of(self, session: Session) -> set[str]:
        """Return the users that a session will watch because of its roster, named or not."""
        return {uid for watch in self._by_session.get(session, ()) for uid in watch.roster}

    def named_by(self, session: Session) -> set[str]:
        """Return the users that a session will watch because its client has named them."""
        return {
            uid
            for watch in self._by_session.get(session, ())
            for uid in (watch.uids if watch.follower is None else watch.named)
            if uid not in watch.unwatched
        }

    def asked_by(self, session: Session) -> set[str]:
        """Return the users in the answers that a session waits for."""
        return {uid for watch in self._by_session.get(session, ()) for uid in watch.uids}

    def count_uids(self, session: Session) -> int:
        return sum(len(watch.uids) for watch in self._by_session.get(session, ()))

    def add(self, watch: PendingWatch) -> None:
        self._by_session.setdefault(watch.session, []).append(watch)
        self._count += 1
        self.bytes += watch.size_bytes
        self.users += len(watch.uids)
        for uid in watch.uids:
            self._by_uid.setdefault(uid, {})[watch] = None

    def resolve(self, uid: str) -> list[PendingWatch]:
        """Record that the state of a user is known; return the watches that are complete now, to be
        removed."""
        complete = []
        for watch in self._by_uid.get(uid, ()):
            if uid in watch.missing:
                watch.missing.remove(uid)
                if not watch.missing:
                    complete.append(watch)
        return complete

    def unwatch(self, session: Session, uids: Iterable[str] | None) -> None:
        """Record that a session no longer wants to watch these users; None for any user."""
        gone = None if uids is None else set(uids)
        for watch in self._by_session.get(session, ()):
            watch.unwatched.update(watch.uids if gone is None else gone.intersection(watch.uids))

    def hide(self, session: Session, uids: Iterable[str]) -> None:
        """Record that a session may not see these users: a watch that waits now does not include them."""
        gone = set(uids)
        for watch in self._by_session.get(session, ()):
            hidden = gone.intersection(watch.uids)
            watch.hidden += hidden
            watch.unwatched |= hidden

    def remove_session(self, session: Session) -> list[PendingWatch]:
        gone = list(self._by_session.get(session, ()))
        for watch in gone:
            self.remove(watch)
        return gone

    def remove(self, watch: PendingWatch) -> None:
        """Remove a watch that is not over yet."""
        watch.is_over = True
        self._count -= 1
        self.bytes -= watch.size_bytes
        self.users -= len(watch.uids)
        mine = self._by_session[watch.session]
        mine.remove(watch)
        if not mine:
            del self._by_session[watch.session]
        for uid in watch.uids:
            awaiting = self._by_uid[uid]
            del awaiting[watch]
            if not awaiting:
                del self._by_uid[uid]
