"""The watch over one Redis server: one subscription and one connection for reads, for all its watched shards.

Two tasks, whatever the number of shards. One receives what the server publishes. The other, in turn, admits
shards and lets each shard with work make one step, and otherwise

* every `CHECK_INTERVAL_S` seconds checks that the server is reachable, answers on the subscription, and still
  has each shard: it may have become a replica, on which nothing is published;
* lets shards compare and switch, and lets those go that have lingered.

A shard that joins begins with a ping: what the server published or confirmed for an earlier stay of the shard
on this connection comes before its answer, and is ignored. So a shard that is to be followed in the other
way, as a whole or by user, leaves and joins again. A failure of the server or of a connection loses all
shards; an answer that refuses one shard loses that one.

The watch ends when the last shard has left; then nothing wakes up any more.

Tests: `tests/watching/test_watch_service.py`, `tests/watching/test_shard_placement.py`,
`tests/watching/test_whole_shards.py`.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

import structlog
import trio

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.watching.channel import (
    Pong,
    ServerChannel,
    ShardChanges,
    ShardJoined,
    ShardLost,
    Subscribed,
    Unsubscribed,
)
from presence.watching.shard_view import ViewPhase
from presence.watching.shard_watch import MAX_USERS_PER_TURN, ShardWatch
from presence.watching.user_states import EntryId, UserEvent

GATHER_S: Final = 0.002  # users watched at about the same time are read together
MAX_CHANNELS_PER_COMMAND: Final = 1_000  # channels in one command
MAX_CHANGES_PER_TURN: Final = 64  # of watched users, decoded and pushed: a millisecond or two
MAX_SHARDS_PER_CHECK: Final = 64  # in one round trip, whose answers take the loop a millisecond or two
CHECK_INTERVAL_S: Final = 3.0

_log = structlog.get_logger(__name__)


class _Ping(NamedTuple):
    """A ping that is not answered yet, and what its answer means for some shards."""

    number: int
    joining: list[ShardWatch]  # these take part from the answer on
    positions: dict[int, EntryId]  # of shards: everything up to this entry has been received


class ServerWatch:
    """Watches shards of one server, over a channel that only this object uses.

    `shard_of` gives the shard of a user. `lost` is called with shards that have to look for their server
    again, and why; `left` with one that has lingered.

    Attributes:
        is_over: whether it is about to end: other shards need another watch.
    """

    def __init__(
        self,
        channel: ServerChannel,
        shard_of: Callable[[str], int],
        lost: Callable[[Iterable[ShardWatch], Exception], None],
        left: Callable[[ShardWatch], None],
        *,
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._channel = channel
        self._shard_of = shard_of
        self._lost = lost
        self._left = left
        self._faults = faults
        self._call = runtime.loop_caller().call
        self._bell = runtime.wake_event()
        self._arriving: list[ShardWatch] = []  # added, and not a member yet
        self._unannounced: list[ShardWatch] = []  # of these, those without a ping
        self._members: dict[int, ShardWatch] = {}
        self._unchecked: list[int] = []  # members since the last check
        self._busy: dict[int, None] = {}  # members that may have something to do
        self._is_mid_read = False  # whether a shard has more to read than one step reads
        self._pings: deque[_Ping] = deque()
        self._pinged = self._pinged_before = 0  # the numbers of the last one, and of that at the last check
        self._check_due = 0.0
        self._timer_due = math.inf  # when a member needs a look, see `ShardWatch.due_at`
        self._changes_left = MAX_CHANGES_PER_TURN  # that may be applied in this turn
        self.is_over = False

    def add(self, watch: ShardWatch) -> None:
        self._arriving.append(watch)
        self._unannounced.append(watch)
        self._bell.set()

    def ring(self, watch: ShardWatch) -> None:
        """Have a shard looked at whose wanted users have changed."""
        self._busy[watch.number] = None
        self._bell.set()

    async def run(self) -> None:
        """Watch until no shard is left, or the server is lost."""
        failures: list[Exception] = []
        try:
            await self._call(self._channel.open)
            async with trio.open_nursery() as nursery:

                async def run_until_one_ends(part: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await part()
                    except (StoreUnavailable, StoreError) as error:
                        failures.append(error.with_traceback(None))  # whose frames would refer to it in turn
                    except Exception as error:
                        failures.append(error)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(run_until_one_ends, self._receive)
                nursery.start_soon(run_until_one_ends, self._serve)
        except Exception as error:
            failures.append(error)
        finally:
            self.is_over = True
            self._channel.close()
        if failures:
            self._lose([*self._members.values(), *self._arriving], failures[0])

    # Messages

    async def _receive(self) -> None:
        while True:
            self._changes_left = MAX_CHANGES_PER_TURN
            for each in await self._call(self._channel.receive):
                with self._faults.contained("watch event"):
                    if isinstance(each, ShardChanges):
                        await self._hear(each)
                    else:
                        self._handle(each)
            await trio.lowlevel.checkpoint()

    def _handle(self, message: Pong | ShardJoined | Subscribed | Unsubscribed | UserEvent) -> None:
        if isinstance(message, Pong):
            self._pong(message.number)
            return
        shard = message.shard if isinstance(message, ShardJoined) else self._shard_of(message.uid)
        watch = self._members.get(shard)
        if watch is not None and watch.handle(message):
            self.ring(watch)

    async def _hear(self, message: ShardChanges) -> None:
        """Apply changes of a whole shard, with turns for other tasks, in which the shard may be lost."""
        watch = self._members.get(message.shard)
        if watch is None or not watch.view.begin_changes(message.previous):
            return
        for uid, event in message.changes:
            self._changes_left -= watch.hear(uid, event)
            if self._changes_left <= 0:
                await trio.lowlevel.checkpoint()
                self._changes_left = MAX_CHANGES_PER_TURN
                if self._members.get(message.shard) is not watch:
                    return
        watch.view.end_changes(message.last)
        if watch.view.phase is ViewPhase.RECOVERING:
            self.ring(watch)

    def _pong(self, number: int) -> None:
        restored = 0
        while self._pings and self._pings[0].number <= number:
            ping = self._pings.popleft()
            for shard, position in ping.positions.items():
                if (watch := self._members.get(shard)) is not None:
                    watch.view.caught_up(position)
                    if watch.view.phase is ViewPhase.RECOVERING:
                        self.ring(watch)
                    restored += watch.failures > 1
                    watch.failures = 0
            for watch in ping.joining:
                self._admit(watch)
        if restored:
            _log.info("watch subscription restored", shards=restored)

    def _admit(self, watch: ShardWatch) -> None:
        self._arriving.remove(watch)
        self._members[watch.number] = watch
        self._unchecked.append(watch.number)
        watch.joined(trio.current_time())
        self._channel.join(watch.number, whole=watch.is_whole)
        self.ring(watch)

    # Reads, one after the other

    async def _serve(self) -> None:
        self._check_due = trio.current_time() + CHECK_INTERVAL_S
        while True:
            if self._unannounced:
                self._ping(joining=self._unannounced)
                self._unannounced = []
            now = trio.current_time()
            if now >= self._check_due:
                await self._check_all(now)
            elif self._unchecked:
                unchecked, self._unchecked = self._unchecked, []
                await self._check(unchecked)
            elif self._busy:
                await self._work()
            elif now >= self._timer_due:
                await self._look_at_all(now)
            elif not (self._members or self._arriving):
                self.is_over = True
                return
            else:
                await self._bell.wait(min(self._check_due, self._timer_due) - now)

    def _ping(
        self, *, joining: Iterable[ShardWatch] = (), positions: dict[int, EntryId] | None = None
    ) -> None:
        self._pinged += 1
        self._pings.append(_Ping(self._pinged, [*joining], positions or {}))
        self._channel.ping(self._pinged)

    async def _check_all(self, now: float) -> None:
        if self._pings and self._pings[0].number <= self._pinged_before:
            raise StoreUnavailable("nothing comes on the subscription")
        self._check_due = now + CHECK_INTERVAL_S
        self._unchecked = []
        await self._check([*self._members])
        self._pinged_before = self._pinged

    async def _check(self, shards: list[int]) -> None:
        for first in range(0, len(shards), MAX_SHARDS_PER_CHECK):
            some = [each for each in shards[first : first + MAX_SHARDS_PER_CHECK] if each in self._members]
            found = await self._call(lambda some=some: self._channel.check(some))  # type: ignore[misc]
            refused = {shard: each for shard, each in found.items() if isinstance(each, ShardLost)}
            if refused:
                self._lose([self._release(shard) for shard in refused], next(iter(refused.values())))
            self._ping(positions={s: each for s, each in found.items() if not isinstance(each, ShardLost)})

    async def _work(self) -> None:
        """Change subscriptions, and let each shard with something to read make one step."""
        busy, self._busy = [self._members[each] for each in self._busy if each in self._members], {}
        now = trio.current_time()
        reading = []
        for watch in busy:
            if watch.must_switch(now):
                self._switch(watch)
                continue
            has_more = watch.view.forget_dropped(MAX_USERS_PER_TURN)
            subscribe, unsubscribe = watch.view.next_subscriptions(MAX_CHANNELS_PER_COMMAND)
            if subscribe or unsubscribe:
                self._channel.update_subscriptions(subscribe, unsubscribe)
            if subscribe or unsubscribe or has_more:
                self._busy[watch.number] = None  # there may be more
            if watch.must_read(now):
                reading.append(watch)
            self._timer_due = min(self._timer_due, watch.due_at(now))
        if not reading:
            await trio.lowlevel.checkpoint()
            return
        if not self._is_mid_read:
            await trio.sleep(GATHER_S)
        self._is_mid_read = False
        for watch in reading:
            if await self._attempt(watch, watch.step):
                now = trio.current_time()
                if watch.must_read(now):
                    self._busy[watch.number] = None
                    self._is_mid_read = True
                self._timer_due = min(self._timer_due, watch.due_at(now))

    async def _look_at_all(self, now: float) -> None:
        """Let shards recover, compare, switch and leave when they are due."""
        for watch in sorted(self._members.values(), key=lambda each: each.compare_due):
            if watch.has_lingered(now):
                self._release(watch.number)
                self._left(watch)
            elif watch.must_switch(now):
                self._switch(watch)
            elif watch.must_read(now):
                self._busy[watch.number] = None
            else:
                await self._attempt(watch, watch.compare)
        now = trio.current_time()
        self._timer_due = min((watch.due_at(now) for watch in self._members.values()), default=math.inf)

    def _switch(self, watch: ShardWatch) -> None:
        """Let a shard be followed in the other way."""
        watch.statistics.switches += 1
        self._release(watch.number)
        watch.left()
        self.add(watch)

    async def _attempt(
        self,
        watch: ShardWatch,
        read: Callable[[ServerChannel, Callable[..., Awaitable[object]]], Awaitable[None]],
    ) -> bool:
        """Let a shard read; return whether it could. Errors that concern no other shard lose this one."""
        try:
            await read(self._channel, self._call)
        except (StoreUnavailable, StoreError) as error:
            if not isinstance(error, ShardLost):
                raise
            self._lose([self._release(watch.number)], error)
        except Exception as error:
            self._lose([self._release(watch.number)], error)
        else:
            return True
        return False

    def _release(self, shard: int) -> ShardWatch:
        """End a shard's subscriptions."""
        watch = self._members.pop(shard)
        self._busy.pop(shard, None)
        subscribed = watch.view.subscribed_users()
        for first in range(0, len(subscribed), MAX_CHANNELS_PER_COMMAND):
            self._channel.update_subscriptions((), subscribed[first : first + MAX_CHANNELS_PER_COMMAND])
        self._channel.leave(shard)
        return watch

    def _lose(self, watches: Iterable[ShardWatch], error: Exception) -> None:
        if not isinstance(error, (StoreUnavailable, StoreError)):
            self._faults.record("watch subscription", error)
        self._lost(watches, error)
