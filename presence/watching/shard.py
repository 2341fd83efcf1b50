"""The watch over one shard: a subscription while anybody there is watched, and what is to be done beside it.

Two tasks and two threads. One hears what the server publishes. The other takes turns: it looks at users who
are newly watched, makes good what was missed after a loss, and otherwise

* every `CHECK_S` seconds makes sure that the server is there, answers on the subscription, and still has the
  shard: it may be a replica by now, on which nobody publishes;
* compares what is known of `WALK_USERS` users a second with their records, each at most every `WALK_CYCLE_S`:
  a net under hints, which are told at most once.

Nobody watched for `LINGER_S`: the connection is closed, and nothing wakes up any more.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.watching.channel import Confirmed, Heard, Left, Pong, ShardChannel
from presence.watching.states import EntryId, ShardSnapshot, UserEvent
from presence.watching.view import Phase, ShardView

GATHER_S: Final = 0.002  # users who are watched at about the same time are looked at together
LOOK_USERS: Final = 500  # in one transaction: a millisecond of Redis
ORDERS: Final = 1_000  # channels in one command
TURN: Final = 500  # entries taken in without a turn for others: some milliseconds
CHECK_S: Final = 3.0
WALK_S: Final = 1.0
WALK_USERS: Final = 500  # a second; at most all of them in
WALK_CYCLE_S: Final = 30.0
LINGER_S: Final = 30.0
REPLAY_ENTRIES: Final = 20_000  # beyond, looking at the users themselves is cheaper

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ShardStatistics:
    """Counters since the start."""

    connections: int = 0  # that were made
    losses: int = 0  # of a connection, or of the server that has the shard
    looks: int = 0  # at users who were newly watched
    replays: int = 0  # losses made good by reading the stream
    rereads: int = 0  # losses made good by looking at all users, for the stream did not reach back
    walked: int = 0  # users compared


class ShardWatch:
    """Watches over the users of one shard.

    Args:
        channel: nobody else uses it.
        absence_s: see `ShardView`.
        tell: called with each change.
        ready: called with users whose states are known from now on.
        faults: contains mistakes: what was heard is passed over, anything else counts as a loss.
    """

    def __init__(
        self,
        shard: int,
        channel: ShardChannel,
        absence_s: float,
        tell: Callable[[UserEvent], None],
        ready: Callable[[Iterable[str]], None],
        *,
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._shard = shard
        self._faults = faults
        self._channel = channel
        self._tell = tell
        self._ready = ready
        self.view = ShardView(absence_s)
        self.statistics = ShardStatistics()
        self._bell = runtime.bell()
        self._hearing = runtime.caller(channel.close)
        self._asking = runtime.caller(channel.close)
        self._failures = 0  # in a row
        self._pinged: EntryId | None = None  # without an answer so far
        self._walk: deque[str] = deque()  # whom to compare yet
        self._check_due = self._walk_due = self._walked_from = self._needed_at = 0.0

    def want(self, uids: Iterable[str]) -> None:
        """Somebody wants to know of users."""
        for uid in uids:
            self.view.want(uid)
            if self.view.answer(uid) is not None:  # he was to be left, and is not
                self._ready((uid,))
        self._bell.ring()

    def drop(self, uids: Iterable[str]) -> None:
        """Nobody wants to know of users any more."""
        for uid in uids:
            self.view.drop(uid)
        self._bell.ring()

    async def run(self) -> None:
        """Watch for ever; cancel it to stop."""
        while True:
            if not len(self.view):
                await self._bell.wait(math.inf)
                continue
            try:
                await self._watch()
            except Exception as error:
                self.statistics.losses += 1
                if not isinstance(error, (StoreUnavailable, StoreError)):
                    self._faults.note("watch subscription", error)
                if self._failures == 1:  # the first may be no more than a restart
                    _log.warning("watch subscription lost", shard=self._shard, error=str(error))
                pause_s = jittered(backoff_s(self._failures, BACKOFF_FIRST_S, BACKOFF_LIMIT_S))
                self._failures += 1
                self.view.lost()
                await trio.sleep(pause_s)
            else:
                self.view.lost()

    async def _watch(self) -> None:
        """Watch until nobody is to be watched any more.

        Raises:
            StoreUnavailable, StoreError: the connection is lost.
        """
        failures: list[StoreUnavailable | StoreError] = []
        try:
            await self._hearing.call(self._channel.open)
            self._connected()
            async with trio.open_nursery() as nursery:

                async def run_until_one_ends(part: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await part()
                    except (StoreUnavailable, StoreError) as error:
                        failures.append(error)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(run_until_one_ends, self._hear)
                nursery.start_soon(run_until_one_ends, self._attend)
        finally:
            self._channel.close()
        if failures:
            raise failures[0]

    def _connected(self) -> None:
        self.statistics.connections += 1
        self._pinged = None
        now = trio.current_time()
        self._check_due, self._walk_due, self._needed_at = now, now + WALK_CYCLE_S, now
        self._walk.clear()
        self.view.connected()

    # What is heard

    async def _hear(self) -> None:
        while True:
            heard = await self._hearing.call(self._channel.hear)
            for first in range(0, len(heard), TURN):
                for each in heard[first : first + TURN]:
                    with self._faults.contained("watch event"):
                        self._take(each)
                self._bell.ring()
                await trio.lowlevel.checkpoint()

    def _take(self, heard: Heard) -> None:
        match heard:
            case UserEvent():
                if (change := self.view.heard(heard)) is not None:
                    self._tell(change)
            case Confirmed():
                self.view.confirmed(heard.uid)
            case Left():
                self.view.left(heard.uid)
            case Pong():
                self._pinged = None
                self.view.caught_up(heard.position)
                if self._failures > 1:
                    _log.info("watch subscription restored", shard=self._shard)
                self._failures = 0

    # What is asked, one after the other

    async def _attend(self) -> None:
        while True:
            ask, leave = self.view.orders(ORDERS)
            if ask or leave:
                self._channel.order(ask, leave)
            now = trio.current_time()
            if len(self.view):
                self._needed_at = now
            if self.view.phase is Phase.RECOVERING:
                await self._recover()
            elif now >= self._check_due:
                await self._check()
            elif self.view.unseen(1):
                await self._look()
            elif now >= self._walk_due:
                await self._compare()
            elif now >= self._needed_at + LINGER_S:
                return
            elif not (ask or leave):
                await self._bell.wait(min(self._check_due, self._walk_due) - now)

    async def _look(self) -> None:
        """Look at users who are newly watched; from then on they are known."""
        await trio.sleep(GATHER_S)
        if uids := self.view.unseen(LOOK_USERS):
            self.statistics.looks += len(uids)
            self._tell_all(await self._looked_at(uids))
            if self.view.phase is Phase.LIVE:
                self._ready(uids)

    async def _check(self) -> None:
        if self._pinged is not None:
            raise StoreUnavailable("nothing comes on the subscription")
        self._pinged = await self._asking.call(self._channel.check)
        self._channel.ping(self._pinged)
        self._check_due = trio.current_time() + CHECK_S

    async def _compare(self) -> None:
        """Compare some of what is known with the records."""
        now = trio.current_time()
        if not self._walk:
            self._walk.extend(self.view.known() if self.view.phase is Phase.LIVE else ())
            self._walked_from = now
        uids = [self._walk.popleft() for _ in range(min(WALK_USERS, len(self._walk)))]
        if uids:
            self.statistics.walked += len(uids)
            self._tell_all(await self._looked_at(uids))
        self._walk_due = now + WALK_S if self._walk else max(now + WALK_S, self._walked_from + WALK_CYCLE_S)

    async def _recover(self) -> None:
        """Make good what was missed: by the stream, or else by the users' records."""
        uids, size = frozenset(self.view.known()), 0
        while size < REPLAY_ENTRIES:
            after = self.view.position
            part = await self._asking.call(lambda after=after: self._channel.replay(after, uids))  # type: ignore[misc]
            if part.is_broken:
                break
            size += part.size
            for first in range(0, len(part.entries), TURN):
                entries = part.entries[first : first + TURN]
                self._tell_all(self.view.replayed(entries, entries[-1].id))
                await trio.lowlevel.checkpoint()
            self._tell_all(self.view.replayed((), part.position))
            if part.is_end:
                self.statistics.replays += 1
                self._recovered(None)
                return
        self.statistics.rereads += 1
        known, positions = self.view.known(), []
        for first in range(0, len(known), LOOK_USERS):
            snapshot = await self._snapshot(known[first : first + LOOK_USERS])
            positions.append(snapshot.as_of)
            self._tell_all(self.view.looked(snapshot, trio.current_time()))
        self._recovered(min(positions, default=self.view.position))

    def _recovered(self, position: EntryId | None) -> None:
        self._tell_all(self.view.recovered(position))
        self._ready(self.view.known())

    async def _looked_at(self, uids: Sequence[str]) -> list[UserEvent]:
        snapshot = await self._snapshot(uids)
        return self.view.looked(snapshot, trio.current_time())

    async def _snapshot(self, uids: Sequence[str]) -> ShardSnapshot:
        self.view.looking(uids)
        return await self._asking.call(lambda: self._channel.snapshot(uids))

    def _tell_all(self, changes: Iterable[UserEvent]) -> None:
        for change in changes:
            with self._faults.contained("watch event"):
                self._tell(change)
