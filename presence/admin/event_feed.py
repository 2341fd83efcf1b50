"""One viewer of ``/v1/events``: every event once, in order within a shard, from where he likes.

New events come from `EventBroadcaster` by a bounded queue. Earlier ones come from the streams, as do those
for which the queue had no room: it is emptied, and reading goes on after the last event that was sent.
A slow viewer is late, and misses nothing that the streams keep.

The id of a message says up to where he was told: the entry id; with several shards that of each shard, as
``0:ID,3:ID``, for ids of two shards say nothing of each other.
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

QUEUE_EVENTS: Final = 1000  # references to what all viewers share
TYPES: Final = ("online", "offline", "away", "update", "gap")
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)
_POSITION: Final = re.compile(r"(\d{1,5}):(\d{1,20}-\d{1,20})", re.ASCII)
_LARGEST: Final = 2**64 - 1


def parse_position(text: str) -> str | dict[int, str]:
    """Return an entry id, or by shard the last that was seen.

    Raises:
        ApiError: it is neither.
    """
    if _ID.fullmatch(text) and max(id_order(text)) <= _LARGEST:
        return text if "-" in text else f"{text}-0"
    found = {}
    for part in text.split(","):
        position = _POSITION.fullmatch(part)
        if not position or max(id_order(position[2])) > _LARGEST:
            raise bad_request("bad_place", "from and Last-Event-ID take an id that an event had")
        found[int(position[1])] = position[2]
    return found


def position_text(positions: Mapping[int, str]) -> str:
    """Return what `parse_position` takes."""
    if len(positions) == 1:
        return positions[0]
    return ",".join(f"{shard}:{each}" for shard, each in sorted(positions.items()) if each != ZERO_ID) or "0"


class EventFeed:
    """The viewer.

    Args:
        broadcaster: who tells of what is new.
        history: who reads what is past.
        after: where to begin; None: now.
        is_seen: whether `after` is the id of an event that was seen, and no mere bound.
        types: of which types; none: all. Gaps are always told.
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
        """Give events, and heartbeats while none come; the first thing given is the place where it begins.

        Raises:
            ApiError: Redis does not answer at first. Later on the stream ends then: who comes back with the
                last id misses nothing.
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
                    if (chunk := self._encode(self._queue.popleft())) is not None:
                        yield chunk
                elif not self._is_behind and not await self._wait():
                    # With the place: events of other types went by, and need not be read again.
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
        """Give what the streams have; from then on the queue has what follows, unless it overflowed again."""
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
                await trio.sleep(0.2)  # until the server of some shards is back

    def _put(self, each: BroadcastEvent) -> None:
        if len(self._queue) >= QUEUE_EVENTS:
            self._queue.clear()
            self._is_behind = True
        if not self._is_behind:
            self._queue.append(each)
        self._arrived.set()

    def _encode(self, each: BroadcastEvent) -> bytes | None:
        """Return the message of an event that he was not told of yet; None if he was, or wants none."""
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
        """Wait until something comes; False: nothing has, for long."""
        self._arrived = trio.Event()
        with trio.move_on_after(HEARTBEAT_INTERVAL_S):
            await self._arrived.wait()
            return True
        return False
