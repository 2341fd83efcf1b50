"""Reads the events of all streams once for all subscribers, and only while there are any.

A new subscriber gets the current position of each shard, and receives every event after it.

Tests: `tests/admin/test_events.py`.
"""

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from presence.admin.responses import ApiError, redis_away, redis_refuses, to_json
from presence.common.redaction import redact_text
from presence.common.runtime import run_in_thread
from presence.store.error_classes import passes
from presence.store.redis_client import RedisError
from presence.subscriber.events import ZERO_ID, Entry, Gap, Item, entry_values, gap_entry, id_order
from presence.subscriber.follower import Follower
from presence.subscriber.redis_connections import RedisConnections

JOIN_TIMEOUT_S: Final = 1.8  # so that a request is answered or refused within 2 s
RETRY_S: Final = 1.0

Positions = Mapping[int, str]
"""The id of the last published entry, by shard; ``0-0`` if there was none."""

log = structlog.get_logger("presence.admin")


class BroadcastEvent:
    """An event, encoded once for all subscribers, and only if one needs it.

    `type` is ``online``, ``offline``, ``away``, ``update``, ``gap``, or an unknown one. A gap has the id
    after which events are missing. For one found while reading, `goes_on_after` is the id after which reading
    continues: it is lower than before if Redis lost data.
    """

    __slots__ = ("_data", "_entry", "goes_on_after", "id", "shard", "type")

    def __init__(self, entry: Entry, goes_on_after: str | None) -> None:
        self._entry = entry
        self._data: bytes | None = None
        self.shard = entry.shard
        self.id = entry.id
        self.type = entry.fields.get("type", "")
        self.goes_on_after = goes_on_after

    @property
    def data(self) -> bytes:
        """The event as JSON, as printed by ``presence tail --json``."""
        if self._data is None:
            self._data = to_json(entry_values(self._entry))
        return self._data


Subscriber = Callable[[BroadcastEvent], None]


def broadcast_event(item: Item, positions: Positions) -> BroadcastEvent:
    """Return the event to publish for an item; `positions`: the current ones."""
    if isinstance(item, Gap):
        return BroadcastEvent(gap_entry(item), min(item.id, positions.get(item.shard, ZERO_ID), key=id_order))
    return BroadcastEvent(item, None)


class EventBroadcaster:
    """Reads events and publishes them to subscribers."""

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._url = redis_url
        self._prefix = prefix
        self._subscribers: set[Subscriber] = set()
        self._wanted = trio.Event()
        self._changed = trio.Event()  # replaced each time it is set
        self._positions: dict[int, str] | None = None
        self._error: ApiError | None = None

    @property
    def positions(self) -> Positions | None:
        """The last published positions; None: nothing is read yet."""
        return None if self._positions is None else dict(self._positions)

    async def subscribe(self, subscriber: Subscriber) -> Positions:
        """Call `subscriber` with each event after the returned positions, until it unsubscribes.

        Raises:
            ApiError: Redis does not answer, or refuses.
        """
        self._subscribers.add(subscriber)
        self._wanted.set()
        try:
            with trio.fail_after(JOIN_TIMEOUT_S):
                while self._positions is None and self._error is None:
                    await self._changed.wait()
        except BaseException as error:
            self.unsubscribe(subscriber)
            if isinstance(error, trio.TooSlowError):
                raise redis_away("no answer in time") from None
            raise
        if self._positions is None:
            self.unsubscribe(subscriber)
            raise self._error or redis_away("no answer")
        return dict(self._positions)

    def subscribe_nowait(self, subscriber: Subscriber) -> None:
        """As `subscribe`, without waiting: events start when Redis is reachable."""
        self._subscribers.add(subscriber)
        self._wanted.set()

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    async def run(self) -> None:
        """Read while there are subscribers, until cancelled."""
        while True:
            self._wanted = trio.Event()
            if not self._subscribers:
                await self._wanted.wait()
            self._error = None
            link = RedisConnections(self._url)
            try:
                await self._follow(Follower(link, self._prefix), link)
            finally:
                self._positions = None
                link.close()

    async def _follow(self, follower: Follower, link: RedisConnections) -> None:
        limiter = trio.CapacityLimiter(1)

        def find_ends() -> None:
            link.run_on_reachable(follower.add_shards, follower.shards)

        while self._subscribers:
            call = follower.fetch if self._positions is not None else find_ends
            try:
                await run_in_thread(call, limiter)
            except (RedisError, ValueError, OSError) as error:
                if self._error is None:
                    log.warning("cannot read events, retrying", error=redact_text(str(error)))
                self._error = (redis_away if passes(error) else redis_refuses)(error)
                self._note_change()
                await trio.sleep(RETRY_S)
                continue
            self._error = None
            self._positions = dict(follower.positions)
            while (item := follower.next()) is not None:
                self._publish(broadcast_event(item, self._positions))
            self._note_change()

    def _publish(self, each: BroadcastEvent) -> None:
        for subscriber in list(self._subscribers):
            subscriber(each)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
