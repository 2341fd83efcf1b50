"""Reads the streams: entry by entry, and by the project's own subscribers, which are judged themselves.

These are a view that begins with a snapshot, and a consumer group.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadtest.stream_events import StreamEvent, WallClock, stream_event
from presence.store.error_classes import CONNECTION_LOST
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.subscriber import Gap, Offline, Online, Snapshot, follow_sync, subscribe_sync
from presence.subscriber.events import ZERO_ID, read_entry
from tests.system.chaos.plan import Place
from tests.system.chaos.rooms import RoomEntry, room_entry
from tests.system.chaos.truth import DATA_LOSSES, DataLoss, SavedState, StreamItem, Trouble

POLL_INTERVAL_S = 0.05
COUNT = 5000
PAUSED_MS = 10_000  # at most; it ends with the server that it was told to, or is ended
REDIS_TIMEOUT_S = 10.0
GROUP = "chaos"
CLAIM_IDLE_S = 5.0
RETRY_S = 1.0
BEHIND_S = 3.0  # a reader is no further behind, unless there was trouble


class Collector:
    """A thread that reads the streams, and records losses of data in the order in which they happened.

    Args:
        client_of: given a key, returns a connection to its Redis; raises LookupError if there is none.

    Attributes:
        ids: all events by shard and id, and when each was written.
    """

    def __init__(self, client_of: Callable[[str], Any], keys: Keys) -> None:
        self.clock = WallClock()
        self.ids: dict[tuple[int, str], float] = {}
        self._keys = keys
        self._client_of = client_of
        self._last = [ZERO_ID] * keys.shards
        self._last_of_rooms = [ZERO_ID] * keys.shards
        self._items: list[StreamItem] = []
        self._lock = threading.RLock()
        self._is_closing = threading.Event()
        self._numbers = 0
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    @property
    def _client(self) -> Any:
        """A connection to Redis, if it is no cluster."""
        return self._client_of(self._keys.events(0))

    def take_until(self, until: float) -> list[StreamItem]:
        """Return the items up to a moment that were not returned yet."""
        with self._lock:
            count = 0
            while count < len(self._items) and self._items[count].written_at <= until:
                count += 1
            items, self._items = self._items[:count], self._items[count:]
        return items

    def untaken_of_rooms(self) -> list[RoomEntry]:
        """Read the streams, and return the entries of rooms that were not taken yet."""
        with self._lock:
            self._read()
            return [each for each in self._items if isinstance(each, RoomEntry)]

    @contextlib.contextmanager
    def writes_paused(self) -> Iterator[None]:
        """Read all entries, and let no client write meanwhile."""
        with self._lock:
            self._await_redis()
            self._client.execute_command("CLIENT", "PAUSE", PAUSED_MS, "WRITE")
            try:
                self._read()
                yield
            finally:
                with contextlib.suppress(RedisError):
                    self._client.execute_command("CLIENT", "UNPAUSE")

    def state_saved(self) -> int:
        """The present state was saved, with writes paused; return its number."""
        self._numbers += 1
        self._items.append(SavedState(self._numbers, time.monotonic()))
        return self._numbers

    def data_lost(self, number: int | None = None) -> None:
        """Redis, with writes paused, is about to return to a saved state; None: to nothing."""
        self._items.append(DataLoss(number, time.monotonic()))

    def flush_all(self) -> int:
        """Read all entries and flush Redis in one transaction; return how many keys there were."""
        with self._lock, self._client.pipeline(transaction=True) as pipe:
            self._await_redis()
            for shard, last in enumerate(self._last):
                pipe.xrange(self._keys.events(shard), f"({last}")
            for shard, last in enumerate(self._last_of_rooms):
                pipe.xrange(self._keys.room_events(shard), f"({last}")
            pipe.dbsize()
            pipe.flushall()
            *answers, count, _ = pipe.execute()
            for shard in range(self._keys.shards):
                self._add(shard, answers[shard])
                self._add_of_rooms(shard, answers[self._keys.shards + shard])
            self.data_lost()
        return int(count)

    def _await_redis(self) -> None:
        """Wait until the connection works."""
        give_up = time.monotonic() + REDIS_TIMEOUT_S
        while True:
            try:
                self._client.ping()
            except CONNECTION_LOST:
                if time.monotonic() > give_up:
                    raise
            else:
                return

    def _run(self) -> None:
        while not self._is_closing.wait(POLL_INTERVAL_S):
            # It asks a member of a cluster that has lost the slot, or that has lost the others.
            with self._lock, contextlib.suppress(RedisError, LookupError, *CONNECTION_LOST):
                self.clock.sample()
                self._read()

    def _read(self) -> None:
        for shard, last in enumerate(self._last):
            key = self._keys.events(shard)
            self._add(shard, self._client_of(key).xrange(key, f"({last}", count=COUNT))
        for shard, last in enumerate(self._last_of_rooms):
            key = self._keys.room_events(shard)
            self._add_of_rooms(shard, self._client_of(key).xrange(key, f"({last}", count=COUNT))

    def _add_of_rooms(self, shard: int, raw: Any) -> None:
        for each in raw:
            # The time of reading: items stay in the order in which Redis took them.
            entry = room_entry(each, self._items[-1].written_at if self._items else time.monotonic())
            self._last_of_rooms[shard] = entry.id
            self._items.append(entry)

    def _add(self, shard: int, raw: Any) -> None:
        for each in raw:
            event: StreamEvent = stream_event(read_entry(shard, each), self.clock)
            self._last[shard] = event.id
            self.ids[shard, event.id] = event.written_at
            self._items.append(event)


class Subscribers:
    """A follower and a group consumer, in two threads.

    Attributes:
        online: by the follower's view.
        ids: entries that the group was given, by shard and id.
        snapshots: how often the view began again.
        redelivered: entries that the group was given again.
        broken: the exceptions that ended a subscriber.
    """

    def __init__(self, url: str) -> None:
        self.online: set[str] = set()
        self.ids: dict[tuple[int, str], float] = {}
        self.snapshots = 0
        self.gaps = 0
        self.redelivered = 0
        self.broken: list[str] = []
        self._is_closing = threading.Event()
        self._view = follow_sync(url)
        self._group = subscribe_sync(
            url, group=GROUP, consumer="one", after="0", updates=True, claim_idle=CLAIM_IDLE_S
        )
        runs = {"view": self._follow, "group": self._consume}
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, run), name=name, daemon=True)
            for name, run in runs.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_closing.set()
        for thread in self._threads:
            thread.join()
        self._view.close()
        self._group.close()

    def _guarded(self, name: str, run: Callable[[], None]) -> None:
        while not self._is_closing.is_set():
            try:
                run()
            except Exception as error:  # whatever ends a subscriber is to be told; a program would begin anew
                self.broken.append(f"the {name} ended: {type(error).__name__}: {error}")
                self._is_closing.wait(RETRY_S)

    def _follow(self) -> None:
        match self._view.poll():
            case Snapshot() as snapshot:
                self.online = set(snapshot.online)
                self.snapshots += 1
            case Online() as event:
                self.online.add(event.uid)
            case Offline() as event:
                self.online.discard(event.uid)

    def _consume(self) -> None:
        event = self._group.poll()
        if isinstance(event, Gap):
            self.gaps += 1
        elif event is not None:
            self.redelivered += (event.shard, event.id) in self.ids
            self.ids[event.shard, event.id] = time.monotonic()


def lost_by_group(
    ids: Mapping[tuple[int, str], float],
    given: Mapping[tuple[int, str], float],
    troubles: Sequence[Trouble],
    path: int,
) -> list[tuple[int, str]]:
    """Return the entries that a group was never given, though Redis had them for long enough.

    Args:
        ids: all entries, and when each was written.
        given: to the group.
        path: the number of the subscribers' path to Redis.
    """
    matter = [
        each
        for each in troubles
        if each.scope is Place.REDIS or (each.scope is Place.PATH and each.place == path)
    ]
    behind = [_unread_span(each, matter) for each in troubles if each.kind in DATA_LOSSES]
    return sorted(
        key
        for key, written_at in [*ids.items()]  # the collector's thread goes on
        if key not in given and not any(begin <= written_at <= end for begin, end in behind)
    )


def _unread_span(forgets: Trouble, troubles: Sequence[Trouble]) -> tuple[float, float]:
    """Return the span before a data loss in which a reader may have missed new entries."""
    begin = forgets.begin - BEHIND_S
    while earlier := [each.begin for each in troubles if each.begin < begin <= each.end + BEHIND_S]:
        begin = min(earlier)
    return begin, forgets.end
