"""Reads past events page by page, for viewers that reconnect with the last id they saw.

Tests: `tests/admin/test_events.py`.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import trio

from presence.admin.responses import ApiError
from presence.admin.views import ask_redis
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import Entry, Item, id_order, read_entry
from presence.subscriber.follower import Follower, newest_ids
from presence.subscriber.redis_connections import RedisConnections, Shards

THREADS: Final = 8
PAGE_EVENTS: Final = 200  # of all shards; a viewer that reads nothing holds one page, some 300 KB

T = TypeVar("T")


class HistoryPage(NamedTuple):
    items: list[Item]  # gaps first, then entries by id
    positions: dict[int, str]  # where to continue, by shard
    is_complete: bool  # whether all shards were read: an unreachable one may have more


class EventHistory:
    """Reads past events, for a few viewers at a time."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._url = redis_url
        self._prefix = prefix
        self._limiter = trio.CapacityLimiter(THREADS)
        self._idle: list[RedisConnections] = []

    async def resolve(self, after: str | Mapping[int, str]) -> dict[int, str]:
        """Return where to begin, by shard: the last entry at or before an id, or the given ids.

        Raises:
            ApiError: Redis does not answer, or a shard does not exist.
        """

        def find(link: RedisConnections) -> dict[int, str]:
            shards = Shards(self._prefix)

            def fetch(access: ShardClients) -> dict[int, str]:
                shards.new_shards(0, access)
                return newest_ids(access, shards.keys, up_to=after) if isinstance(after, str) else dict(after)

            found = link.run_on_reachable(fetch, shards)
            if any(shard >= shards.keys.shards for shard in found):
                raise ApiError(400, "bad_place", "there is no such shard")
            return found

        return await self._call(find)

    async def page(self, positions: Mapping[int, str]) -> HistoryPage:
        """Return the next events.

        Raises:
            ApiError: Redis does not answer.
        """

        def read(link: RedisConnections) -> HistoryPage:
            per_read = max(1, PAGE_EVENTS // max(1, len(positions)))
            follower = Follower(link, self._prefix, dict(positions), per_read=per_read)

            def fetch(access: ShardClients) -> HistoryPage:
                items, keys = follower.read(access), follower.shards.keys
                is_complete = len(access.reachable(keys)) == keys.shards
                return HistoryPage(items, {**positions, **follower.positions}, is_complete)

            return link.run_on_reachable(fetch, follower.shards)

        return await self._call(read)

    async def newest(self, count: int) -> list[Entry]:
        """Return the last events of all shards, oldest first.

        Raises:
            ApiError: Redis does not answer, or refuses.
        """

        def read(link: RedisConnections) -> list[Entry]:
            shards = Shards(self._prefix)

            def fetch(access: ShardClients) -> list[Entry]:
                shards.new_shards(0, access)
                answers = access.ask(
                    shards.keys,
                    access.reachable(shards.keys),
                    lambda pipe, shard: pipe.xrevrange(shards.keys.events(shard), count=count),
                )
                return [read_entry(shard, each) for shard, (raw,) in answers.items() for each in raw]

            found = link.run_on_reachable(fetch, shards)
            return sorted(found, key=lambda entry: id_order(entry.id))[-count:]

        return await self._call(read)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _call(self, ask: Callable[[RedisConnections], T]) -> T:
        def call() -> T:
            link = self._idle.pop() if self._idle else RedisConnections(self._url, reconnects=True)
            found = ask(link)  # after a failed call the link is closed and dropped
            self._idle.append(link)
            return found

        return await ask_redis(call, self._limiter)
