"""The events of all streams, read once for all who look, and only while somebody does.

Whoever joins is told up to where everybody else has been told, by shard: what comes after that comes to him.
"""

from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from presence.admin.answers import ApiError, redis_away, redis_refuses, to_json
from presence.common.redaction import redact_text
from presence.store.client import RedisError
from presence.store.error_classes import passes
from presence.subscriber.connection import RedisConnections
from presence.subscriber.event_json import entry_of, entry_values
from presence.subscriber.events import ZERO_ID, Entry, Gap, Item, id_order
from presence.subscriber.follower import Follower

JOIN_S: Final = 1.8  # so that who asks has an answer, or a refusal, within 2 s
RETRY_S: Final = 1.0

Places = Mapping[int, str]
"""By shard, the id of the entry up to which events were told; ``0-0`` where there was none."""

log = structlog.get_logger("presence.admin")


class BroadcastEvent:
    """An event, encoded once for all, and only if somebody is shown it.

    Args:
        entry: the event; one that stands for a gap has the id after which events are missing.
        goes_on_after: of a gap that was found while reading, the id after which reading goes on: it is a
            lower one where Redis lost what it had.

    Attributes:
        shard: its shard.
        id: its entry id.
        type: ``online``, ``offline``, ``away``, ``update``, ``gap``, or what is unknown here.
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
        """The event as JSON, as ``presence tail --json`` has it."""
        if self._data is None:
            self._data = to_json(entry_values(self._entry))
        return self._data


Reader = Callable[[BroadcastEvent], None]


def tiding(item: Item, places: Places) -> BroadcastEvent:
    """Return what a reader is told of an item; `places`: where reading stands."""
    if isinstance(item, Gap):
        return BroadcastEvent(entry_of(item), min(item.id, places.get(item.shard, ZERO_ID), key=id_order))
    return BroadcastEvent(item, None)


class EventBroadcaster:
    """Reads, and tells.

    Args:
        redis_url: of the servers' Redis.
        prefix: what the keys begin with.
    """

    def __init__(self, redis_url: str, prefix: str) -> None:
        self._url = redis_url
        self._prefix = prefix
        self._readers: set[Reader] = set()
        self._wanted = trio.Event()
        self._changed = trio.Event()  # replaced whenever it is set
        self._places: dict[int, str] | None = None
        self._trouble: ApiError | None = None

    @property
    def places(self) -> Places | None:
        """Up to where readers have been told; None: nothing is read yet."""
        return None if self._places is None else dict(self._places)

    async def join(self, reader: Reader) -> Places:
        """Have `reader` called with all events after those places that are returned, until it leaves.

        Raises:
            ApiError: Redis does not answer, or refuses.
        """
        self._readers.add(reader)
        self._wanted.set()
        try:
            with trio.fail_after(JOIN_S):
                while self._places is None and self._trouble is None:
                    await self._changed.wait()
        except BaseException as error:
            self.leave(reader)
            if isinstance(error, trio.TooSlowError):
                raise redis_away("no answer in time") from None
            raise
        if self._places is None:
            self.leave(reader)
            raise self._trouble or redis_away("no answer")
        return dict(self._places)

    def join_when_there(self, reader: Reader) -> None:
        """As `join`, but wait for nothing: events come when Redis does."""
        self._readers.add(reader)
        self._wanted.set()

    def leave(self, reader: Reader) -> None:
        """Tell this reader no more."""
        self._readers.discard(reader)

    async def run(self) -> None:
        """Read whenever somebody looks, until cancelled."""
        while True:
            self._wanted = trio.Event()
            if not self._readers:
                await self._wanted.wait()
            self._trouble = None
            link = RedisConnections(self._url)
            try:
                await self._follow(Follower(link, self._prefix), link)
            finally:
                self._places = None
                link.close()

    async def _follow(self, follower: Follower, link: RedisConnections) -> None:
        limiter = trio.CapacityLimiter(1)

        def find_ends() -> None:
            link.turn(follower.add_shards, follower.shards)

        while self._readers:
            call = follower.fetch if self._places is not None else find_ends
            try:
                await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
            except (RedisError, ValueError, OSError) as error:
                if self._trouble is None:
                    log.warning("cannot read events, retrying", error=redact_text(str(error)))
                self._trouble = (redis_away if passes(error) else redis_refuses)(error)
                self._note_change()
                await trio.sleep(RETRY_S)
                continue
            self._trouble = None
            self._places = dict(follower.positions)
            while (item := follower.take()) is not None:
                self._tell(tiding(item, self._places))
            self._note_change()

    def _tell(self, each: BroadcastEvent) -> None:
        for reader in list(self._readers):
            reader(each)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
