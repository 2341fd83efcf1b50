"""One viewer of ``/v1/events``: every event once, in order within a shard, from a chosen position.

New events come from `EventBroadcaster` through a bounded queue. Earlier ones come from the streams, as do
those that overflowed the queue: it is emptied, and reading continues after the last event that was sent. Slow
viewers receive events late but miss none that the streams keep.

The id of a message is the viewer's position: the entry id; with several shards that of each shard, as
``0:ID,3:ID``, because ids of different shards are unrelated.

Tests: `tests/admin/test_events.py`.
"""

import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Final

import trio

from presence.admin.broadcast import BroadcastEvent, EventBroadcaster, broadcast_event
from presence.admin.history import EventHistory
from presence.admin.responses import ApiError, bad_request
from presence.admin.sse import HEARTBEAT, HEARTBEAT_INTERVAL_S, message
from presence.subscriber.events import ZERO_ID, id_order

QUEUE_EVENTS: Final = 1000  # references to events that all viewers share
TYPES: Final = ("online", "offline", "away", "update", "device", "rooms", "gap")
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)
_POSITION: Final = re.compile(r"(\d{1,5}):(\d{1,20}-\d{1,20})", re.ASCII)
_LARGEST: Final = 2**64 - 1


def parse_position(text: str) -> str | dict[int, str]:
    """Return an entry id, or the last id seen by shard.

    Raises:
        ApiError: it is neither.
    """
    if _ID.fullmatch(text) and max(id_order(text)) <= _LARGEST:
        return text if "-" in text else f"{text}-0"
    found = {}
    for part in text.split(","):
        position = _POSITION.fullmatch(part)
        if not position or max(id_order(position[2])) > _LARGEST:
            raise bad_request("bad_place", "from and Last-Event-ID take the id of an event")
        found[int(position[1])] = position[2]
    return found


def position_text(positions: Mapping[int, str]) -> str:
    """Return the text that `parse_position` reads."""
    if len(positions) == 1:
        return positions[0]
    return ",".join(f"{shard}:{each}" for shard, each in sorted(positions.items()) if each != ZERO_ID) or "0"


class EventFeed:
    """The events for one viewer, after `after`; None: from now on.

    `is_seen`: whether `after` is the id of an event that the viewer has seen, not just a bound. `types`: only
    these; none: all. Gaps are always included.
    """

    def __init__(
        self,
        broadcaster: EventBroadcaster,
        history: EventHistory,
        after: str | Mapping[int, str] | None,
        *,
        is_seen: bool,
        types: Iterable[str] = (),
    ) -> None:
        self._broadcaster = broadcaster
        self._history = history
        self._after = after
        self._is_seen = is_seen
        self._types = frozenset(types) | {"gap"} if types else None
        self._positions: dict[int, str] = {}
        self._queue: deque[BroadcastEvent] = deque()
        self._is_behind = False
        self._arrived = trio.Event()

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Give the initial position, then events, and heartbeats in quiet periods.

        Raises:
            ApiError: Redis does not answer at first. Later the stream ends instead: a viewer that reconnects
                with the last id misses nothing.
        """
        start = await self._broadcaster.subscribe(self._put)
        try:
            if self._after is None:
                self._positions = dict(start)
            else:
                self._positions = await self._begin(self._after, len(start))
                self._is_behind = True
            yield f"id: {position_text(self._positions)}\n\n".encode()
            while True:
                if self._is_behind:
                    async with aclosing(self._catch_up()) as chunks:
                        async for chunk in chunks:
                            yield chunk
                if self._queue:
                    if (encoded := self._encode(self._queue.popleft())) is not None:
                        yield encoded
                elif not self._is_behind and not await self._wait():
                    # With the position, so that skipped events of other types are not read again.
                    yield HEARTBEAT[:-1] + f"id: {position_text(self._positions)}\n\n".encode()
        except ApiError:
            if not self._positions:
                raise
        finally:
            self._broadcaster.unsubscribe(self._put)

    async def _begin(self, after: str | Mapping[int, str], shards: int) -> dict[int, str]:
        if isinstance(after, str) and self._is_seen and shards == 1:
            return {0: after}
        found = await self._history.resolve(after)
        return {shard: found.get(shard, ZERO_ID) for shard in range(shards)} | found

    async def _catch_up(self) -> AsyncGenerator[bytes, None]:
        """Give events from the streams; the queue has those that follow, unless it overflowed again."""
        self._queue.clear()
        self._is_behind = False
        while True:
            page = await self._history.page(self._positions)
            for item in page.items:
                if chunk := self._encode(broadcast_event(item, page.positions)):
                    yield chunk
            self._positions = page.positions
            if not page.items and page.is_complete:
                return
            if not page.items:
                await trio.sleep(0.2)  # until the servers of all shards are reachable

    def _put(self, each: BroadcastEvent) -> None:
        if len(self._queue) >= QUEUE_EVENTS:
            self._queue.clear()
            self._is_behind = True
        if not self._is_behind:
            self._queue.append(each)
        self._arrived.set()

    def _encode(self, each: BroadcastEvent) -> bytes | None:
        """Return the message of an event; None if the viewer has seen it or did not ask for its type."""
        if each.goes_on_after is not None:
            self._positions[each.shard] = each.goes_on_after
        else:
            if id_order(each.id) <= id_order(self._positions.get(each.shard, ZERO_ID)):
                return None
            self._positions[each.shard] = each.id
        if self._types is not None and each.type not in self._types:
            return None
        name = each.type if each.type in TYPES else "other"
        return message(name, each.data, position_text(self._positions))

    async def _wait(self) -> bool:
        """Wait for an event; return False after `HEARTBEAT_INTERVAL_S` without one."""
        self._arrived = trio.Event()
        with trio.move_on_after(HEARTBEAT_INTERVAL_S):
            await self._arrived.wait()
            return True
        return False
