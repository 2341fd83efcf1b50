"""All watched shards of a worker, each with the watch over the server that has it at present.

A shard without a server is looked for as soon as a user of it is wanted, and after a loss with growing
pauses: together with the others that were lost with it, so that they find their next server in one look.
"""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog
import trio

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import BACKOFF_FIRST_S, BACKOFF_LIMIT_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.watching.channel import ShardServers
from presence.watching.known_states import KnownStates
from presence.watching.packed_states import PackedStates
from presence.watching.server_watch import ServerWatch
from presence.watching.shard_watch import ReadPaces, ShardWatch
from presence.watching.user_states import UserEvent, WatchedState
from presence.watching.user_table import UserTable

# Of a worker, where users are spread evenly over shards: 1 MB of Redis, 270 bytes each. In full batches whole
# shards also take less of its time, if six workers watch a fifth of the users each, or 54 a fiftieth. Changes
# alone in their batches take up to two fifths more (`benchmarks.watch_channels`).
MAX_USER_CHANNELS: Final = 3_500
NO_SERVER: Final = "no server of the cluster has it"

_log = structlog.get_logger(__name__)


class WatchedShards:
    """Watches users of all shards, with two connections to each server and no thread.

    `shard_of` gives the shard of a user, of `shards` in all; `users` is the worker's table; `live_nodes`: see
    `ReadPaces`; others: see `ShardWatch`. Of errors, those in a message skip it, and all others count as a
    loss.

    Attributes:
        states: the known states of all watched users.
    """

    def __init__(
        self,
        servers: ShardServers,
        shard_of: Callable[[str], int],
        absence_s: float,
        push: Callable[[UserEvent], None],
        ready: Callable[[Iterable[str]], None],
        *,
        users: UserTable,
        shards: int,
        live_nodes: Callable[[], int],
        runtime: Runtime,
        faults: Faults,
    ) -> None:
        self._servers = servers
        self._shard_of = shard_of
        self._absence_s = absence_s
        self._max_user_channels = max(1, MAX_USER_CHANNELS // shards)
        self._paces = ReadPaces(live_nodes)
        self._push = push
        self._ready = ready
        self._runtime = runtime
        self._faults = faults
        self._call = runtime.loop_caller().call
        self._bell = runtime.wake_event()
        self._users = users
        self.states = PackedStates()
        self._watches: dict[int, ShardWatch] = {}
        self._unplaced: dict[int, ShardWatch] = {}  # without a server
        self._places: dict[int, ServerWatch] = {}  # of the others
        self._by_server: dict[str, ServerWatch] = {}
        self._is_stale = False  # whether the servers of shards may have changed

    @property
    def all(self) -> Collection[ShardWatch]:
        """The watches over all shards of which a user has been watched."""
        return self._watches.values()

    def is_current(self, uid: str) -> bool:
        watch = self._watches.get(self._shard_of(uid))
        return watch is not None and watch.view.is_current(uid)

    def latest(self, uid: str) -> WatchedState | None:
        watch = self._watches.get(self._shard_of(uid))
        return watch.view.latest(uid) if watch is not None else None

    def want(self, uids: Iterable[str]) -> None:
        for shard, some in self._by_shard(uids).items():
            watch = self._watches.get(shard)
            if watch is None:
                watch = self._watches[shard] = ShardWatch(
                    shard,
                    KnownStates(shard, self._users, self.states),
                    self._absence_s,
                    self._push,
                    self._ready,
                    max_user_channels=self._max_user_channels,
                    paces=self._paces,
                    faults=self._faults,
                )
            watch.want(some)
            if (place := self._places.get(shard)) is not None:
                place.ring(watch)
            else:
                self._unplaced[shard] = watch
                self._bell.set()

    def drop(self, uids: Iterable[str]) -> None:
        for shard, some in self._by_shard(uids).items():
            if (watch := self._watches.get(shard)) is not None:
                watch.drop(some)
                if (place := self._places.get(shard)) is not None:
                    place.ring(watch)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                self._unplaced = {shard: each for shard, each in self._unplaced.items() if len(each.view)}
                due = [each for each in self._unplaced.values() if each.retry_at <= now]
                if due:
                    await self._place(due, nursery)
                else:
                    retry_at = min((each.retry_at for each in self._unplaced.values()), default=math.inf)
                    await self._bell.wait(retry_at - now)

    async def _place(self, watches: list[ShardWatch], nursery: trio.Nursery) -> None:
        """Look for the servers of shards, and let these watch them."""
        is_stale, self._is_stale = self._is_stale, False
        shards = [each.number for each in watches]
        try:
            found = await self._call(lambda: self._servers.locate(shards, anew=is_stale))
        except Exception as error:
            if not isinstance(error, (StoreUnavailable, StoreError)):
                self._faults.record("watch subscription", error)
            self._lost(watches, error)
            return
        if missing := [each for each in watches if each.number not in found]:
            self._lost(missing, StoreUnavailable(NO_SERVER))
        self._by_server = {name: each for name, each in self._by_server.items() if not each.is_over}
        for watch in watches:
            if (name := found.get(watch.number)) is not None:
                server = self._by_server.get(name)
                if server is None:
                    server = self._by_server[name] = ServerWatch(
                        self._servers.channel(name),
                        self._shard_of,
                        self._lost,
                        self._leave,
                        runtime=self._runtime,
                        faults=self._faults,
                    )
                    nursery.start_soon(server.run)
                del self._unplaced[watch.number]
                self._places[watch.number] = server
                server.add(watch)

    def _lost(self, watches: Iterable[ShardWatch], error: Exception) -> None:
        """Look for the servers of shards again, after a pause."""
        lost = [*watches]
        failures = max((each.failures for each in lost), default=0)
        if any(each.failures == 1 for each in lost):  # the first may be just a restart
            _log.warning("watch subscription lost", shards=len(lost), error=str(error))
        retry_at = trio.current_time() + jittered(backoff_s(failures, BACKOFF_FIRST_S, BACKOFF_LIMIT_S))
        self._is_stale = True
        for watch in lost:
            watch.statistics.losses += 1
            watch.failures += 1
            watch.retry_at = retry_at
            self._leave(watch)

    def _leave(self, watch: ShardWatch) -> None:
        watch.left()
        self._places.pop(watch.number, None)
        self._unplaced[watch.number] = watch
        self._bell.set()

    def _by_shard(self, uids: Iterable[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for uid in uids:
            found.setdefault(self._shard_of(uid), []).append(uid)
        return found
