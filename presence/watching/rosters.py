"""Which sessions follow the roster of their user, and when rosters are read.

A roster is not kept here. Each time it is read, it is compared with what the session watches, and the
difference is carried out; so what was missed or came twice does no harm. A session follows before its roster
is read, and one that changes during a read is read again.

Reads are gathered. After a loss of the control channel all rosters that are followed may have changed: they
are read again, `REREADS_PER_S` of them, so that 50 workers that return together take a small part of Redis.

A follower takes some 700 bytes, and `NAME_BYTES` for each user whom it also watches by name, or does not
watch although the roster has them.

Tests: `tests/watching/test_rosters.py`.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime, TrioWakeEvent
from presence.core.registry import Session
from presence.core.service_requests import WatchRequest

GATHER_S: Final = 0.003
MAX_ROSTERS_PER_READ: Final = 32  # of 500 users each: some milliseconds of this process
REREADS_PER_S: Final = 500  # of a worker: with 50 workers some 50 MB and 30 ms of Redis' time, a second
REREAD_INTERVAL_S: Final = 0.05
RETRY_S: Final = 15.0  # after a read that failed, or when there was no room
FOLLOWER_BYTES: Final = 700
NAME_BYTES: Final = 120
MAX_UNCOMPARED: Final = 64  # users unwatched by name, until a comparison drops those not in the roster
_NO_NAMES: Final[frozenset[str]] = frozenset()


class Rosters(Protocol):
    """The rosters in Redis: blocking calls, one at a time."""

    def read(self, uids: Sequence[str]) -> Mapping[str, Sequence[str] | None]:
        """Return the roster of each user, None for one that is not there.

        Raises:
            StoreUnavailable, StoreError: Redis is unreachable, or refuses.
        """


class NoRosters:
    """Rosters where no backend keeps any."""

    def read(self, uids: Sequence[str]) -> Mapping[str, None]:
        return dict.fromkeys(uids)


@dataclass(slots=True)
class RosterStatistics:
    """Gauges, and counters since the start."""

    followed: int = 0  # sessions that follow a roster
    overdue: int = 0  # rosters to be read again at a pace
    reads: int = 0  # rosters read
    rereads: int = 0  # of these, again: a change may have been missed, a read has failed, there was no room
    failures: int = 0  # reads of several rosters that failed
    added: int = 0  # users whom a changed roster made sessions watch
    removed: int = 0  # users whom sessions watched no longer
    no_room: int = 0  # comparisons whose added users could not be watched, and are tried again


@dataclass(eq=False, slots=True)
class RosterFollower:
    """A session that follows the roster of its user."""

    session: Session
    request: WatchRequest | None  # the watch that waits for the roster
    named: frozenset[str]  # users whom the client watches by name, whatever the roster has
    skipped: frozenset[str] = _NO_NAMES  # of the roster, unwatched by name, or not to be seen
    max_skipped: int = MAX_UNCOMPARED  # with more it is compared, which drops those not in the roster
    is_answered: bool = False  # whether a watch of the roster was ever granted
    is_busy: bool = False  # a watch of its users is pending
    is_put_off: bool = False  # it has to be compared as soon as it can be


class FollowedRosters:
    """The sessions of this process that follow rosters; a user may have several.

    Args:
        rosters: only this object uses it.
        compare: called with a follower and its roster, which was just read.
        refuse: called with a follower whose request waited for a read that failed.
    """

    def __init__(
        self,
        rosters: Rosters,
        compare: Callable[[RosterFollower, Sequence[str] | None], None],
        refuse: Callable[[RosterFollower], None],
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._rosters = rosters
        self._compare = compare
        self._refuse = refuse
        self._redis = runtime.loop_caller()
        self._faults = faults
        self._by_session: dict[Session, RosterFollower] = {}
        self._by_uid: dict[str, list[RosterFollower]] = {}
        self._due: dict[str, None] = {}  # users whose rosters are read next, in order
        self._overdue: deque[str] = deque()  # users whose rosters are read again, at a pace
        self._later: OrderedDict[str, float] = OrderedDict()  # users whose rosters are read at a time
        self._arrived = TrioWakeEvent()
        self._put_aside = TrioWakeEvent()
        self._names = 0  # of users, kept for all followers
        self._statistics = RosterStatistics()

    @property
    def bytes(self) -> int:
        """Approximate memory of all followers."""
        return FOLLOWER_BYTES * len(self._by_session) + NAME_BYTES * self._names

    def get(self, session: Session) -> RosterFollower | None:
        return self._by_session.get(session)

    def follow(self, session: Session, request: WatchRequest, named: Iterable[str]) -> bool:
        """Let a watch wait for the roster of its session; return whether no other of the session does.

        `named`: users whom the session watches already, if it does not follow yet.
        """
        follower = self._by_session.get(session)
        if follower is None:
            follower = RosterFollower(session, request, _NO_NAMES)
            self._by_session[session] = follower
            self._by_uid.setdefault(session.uid, []).append(follower)
            self.keep(follower, named=frozenset(named))
        elif follower.request is not None:
            return False
        follower.request = request
        self.changed((session.uid,))
        return True

    def stop(self, session: Session) -> None:
        """Let a session follow no longer."""
        follower = self._by_session.pop(session, None)
        if follower is None:
            return
        self.keep(follower, named=_NO_NAMES, skipped=_NO_NAMES)
        others = self._by_uid[session.uid]
        others.remove(follower)
        if not others:
            del self._by_uid[session.uid]
            self._due.pop(session.uid, None)
            self._later.pop(session.uid, None)

    def keep(
        self,
        follower: RosterFollower,
        *,
        named: frozenset[str] | None = None,
        skipped: frozenset[str] | None = None,
    ) -> None:
        """Set the names of a follower; None: unchanged."""
        self._names -= len(follower.named) + len(follower.skipped)
        follower.named = follower.named if named is None else named
        follower.skipped = follower.skipped if skipped is None else skipped
        self._names += len(follower.named) + len(follower.skipped)

    def compared(self, follower: RosterFollower, roster: Iterable[str]) -> None:
        """Note that a roster was compared: who is not in it is not skipped."""
        self.keep(follower, skipped=follower.skipped.intersection(roster))
        follower.max_skipped = len(follower.skipped) + MAX_UNCOMPARED

    def unwatched(self, follower: RosterFollower, uids: Iterable[str]) -> None:
        """Note that a client has unwatched users by name, who may be in the roster."""
        gone = frozenset(uids)
        self.keep(follower, named=follower.named - gone, skipped=follower.skipped | gone)
        if len(follower.skipped) > follower.max_skipped:
            self.changed((follower.session.uid,))

    def changed(self, uids: Iterable[str]) -> None:
        """Read the rosters of those of some users who have followers."""
        for uid in uids:
            if uid in self._by_uid:
                self._due[uid] = None
        if self._due:
            self._arrived.set()

    def missed(self) -> None:
        """Read all rosters again, because changes of them may have been missed."""
        self._overdue = deque(self._by_uid)
        self._put_aside.set()

    def later(self, follower: RosterFollower) -> None:
        """Read a roster again after a while."""
        uid = follower.session.uid
        if uid in self._by_uid and uid not in self._later:
            self._later[uid] = trio.current_time() + RETRY_S
            self._put_aside.set()

    def again(self, session: Session) -> None:
        """Compare a session's roster, if that was put off."""
        follower = self._by_session.get(session)
        if follower is not None and follower.is_put_off:
            follower.is_put_off = False
            self.changed((session.uid,))

    async def run(self) -> None:
        """Read rosters until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._recall)
            while True:
                if not self._due:
                    await self._arrived.wait(math.inf)
                    await trio.sleep(GATHER_S)
                uids = [*self._due][:MAX_ROSTERS_PER_READ]
                for uid in uids:
                    del self._due[uid]
                if uids:
                    await self._read(uids)
                await trio.lowlevel.checkpoint()

    async def _recall(self) -> None:
        """Move to those due what was put aside."""
        per_turn = round(REREADS_PER_S * REREAD_INTERVAL_S)
        while True:
            if not (self._overdue or self._later):
                await self._put_aside.wait(math.inf)
            await trio.sleep(REREAD_INTERVAL_S)
            now = trio.current_time()
            while self._later and (first := next(iter(self._later.items())))[1] <= now:
                del self._later[first[0]]
                self._overdue.append(first[0])
            some = [self._overdue.popleft() for _ in range(min(per_turn, len(self._overdue)))]
            self._statistics.rereads += len(some)
            self.changed(some)

    async def _read(self, uids: Sequence[str]) -> None:
        try:
            found = await self._redis.call(lambda: self._rosters.read(uids))
        except Exception as error:
            self._statistics.failures += 1
            if not isinstance(error, (StoreUnavailable, StoreError)):
                self._faults.record("roster", error)
            failed = [*uids, *self._due]  # the others' reads would only fail later
            self._due.clear()
            for uid in failed:
                for follower in self._followers(uid):
                    self._fail(follower)
                await trio.lowlevel.checkpoint()
            return
        self._statistics.reads += len(uids)
        for uid in uids:
            for follower in self._followers(uid):
                if self._follows(follower):
                    disconnect = partial(self._faults.disconnect, follower.session)
                    with self._faults.contained("roster", disconnect):
                        self._compare(follower, found[uid])
                await trio.lowlevel.checkpoint()

    def _fail(self, follower: RosterFollower) -> None:
        if follower.request is not None and self._follows(follower):
            with self._faults.contained("roster", partial(self._faults.disconnect, follower.session)):
                self._refuse(follower)
        if follower.is_answered and self._follows(follower):
            self.later(follower)

    def _followers(self, uid: str) -> list[RosterFollower]:
        return [*self._by_uid.get(uid, ())]

    def _follows(self, follower: RosterFollower) -> bool:
        return self._by_session.get(follower.session) is follower

    @property
    def statistics(self) -> RosterStatistics:
        self._statistics.followed, self._statistics.overdue = len(self._by_session), len(self._overdue)
        return self._statistics
