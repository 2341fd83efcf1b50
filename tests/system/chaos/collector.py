"""Reads the streams: entry by entry, and by the project's own subscribers, which are judged themselves.

These are a view that begins with a snapshot, and a consumer group.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadtest.events import StreamEvent, WallClock, event_of
from presence.store.client import RedisError
from presence.store.error_classes import CONNECTION_LOST
from presence.store.keys import Keys
from presence.subscriber import Gap, Offline, Online, Snapshot, follow_sync, subscribe_sync
from presence.subscriber.events import ZERO_ID, read_entry
from tests.system.chaos.plan import Place
from tests.system.chaos.truth import FORGETS, Forgot, SavedState, Told, Trouble

LOOK_S = 0.05
COUNT = 5000
PAUSED_MS = 10_000  # at most; it ends with the server that it was told to, or is ended
READY_S = 10.0
GROUP = "chaos"
CLAIM_IDLE_S = 5.0
AGAIN_S = 1.0
BEHIND_S = 3.0  # a reader is no further behind, unless there was trouble


class Collector:
    """A thread that reads, and tells what Redis forgot in the order in which it happened.

    Args:
        client_of: given a key, returns a connection to the Redis that has it; raises LookupError if none has.
        keys: how the servers call their keys.

    Attributes:
        clock: the wall clock.
        ids: all events by shard and id, and when each stood.
    """

    def __init__(self, client_of: Callable[[str], Any], keys: Keys) -> None:
        self.clock = WallClock()
        self.ids: dict[tuple[int, str], float] = {}
        self._keys = keys
        self._client_of = client_of
        self._last = [ZERO_ID] * keys.shards
        self._told: list[Told] = []
        self._lock = threading.RLock()
        self._is_closing = threading.Event()
        self._numbers = 0
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._is_closing.set()
        self._thread.join()

    @property
    def _client(self) -> Any:
        """A connection to the one Redis, where there is but one."""
        return self._client_of(self._keys.events(0))

    def take(self, until: float) -> list[Told]:
        """Return what was told up to a moment, and has not been returned yet."""
        with self._lock:
            count = 0
            while count < len(self._told) and self._told[count].stood <= until:
                count += 1
            told, self._told = self._told[:count], self._told[count:]
        return told

    @contextlib.contextmanager
    def writes_paused(self) -> Iterator[None]:
        """Let nobody write meanwhile, and read all that is there first."""
        with self._lock:
            self._reach()
            self._client.execute_command("CLIENT", "PAUSE", PAUSED_MS, "WRITE")
            try:
                self._read()
                yield
            finally:
                with contextlib.suppress(RedisError):
                    self._client.execute_command("CLIENT", "UNPAUSE")

    def kept(self) -> int:
        """The state of now is kept, with writes paused; return its number."""
        self._numbers += 1
        self._told.append(SavedState(self._numbers, time.monotonic()))
        return self._numbers

    def forgot(self, number: int | None = None) -> None:
        """Redis, with writes paused, is going back to a state that was kept; None: to nothing."""
        self._told.append(Forgot(number, time.monotonic()))

    def flush_all(self) -> int:
        """Read all that is there and flush it, in one transaction; return how many keys there were."""
        with self._lock, self._client.pipeline(transaction=True) as pipe:
            self._reach()
            for shard, last in enumerate(self._last):
                pipe.xrange(self._keys.events(shard), f"({last}")
            pipe.dbsize()
            pipe.flushall()
            *answers, count, _ = pipe.execute()
            for shard, raw in enumerate(answers):
                self._take(shard, raw)
            self.forgot()
        return int(count)

    def _reach(self) -> None:
        """Have a connection that lives."""
        give_up = time.monotonic() + READY_S
        while True:
            try:
                self._client.ping()
            except CONNECTION_LOST:
                if time.monotonic() > give_up:
                    raise
            else:
                return

    def _run(self) -> None:
        while not self._is_closing.wait(LOOK_S):
            # It asks a member of a cluster that has lost the slot, or that has lost the others.
            with self._lock, contextlib.suppress(RedisError, LookupError, *CONNECTION_LOST):
                self.clock.sample()
                self._read()

    def _read(self) -> None:
        for shard, last in enumerate(self._last):
            key = self._keys.events(shard)
            self._take(shard, self._client_of(key).xrange(key, f"({last}", count=COUNT))

    def _take(self, shard: int, raw: Any) -> None:
        for each in raw:
            event: StreamEvent = event_of(read_entry(shard, each), self.clock)
            self._last[shard] = event.id
            self.ids[shard, event.id] = event.stood
            self._told.append(event)


class Subscribers:
    """Two threads.

    Args:
        url: of Redis, perhaps by way of a proxy.

    Attributes:
        online: who is online, by the view.
        ids: entries that the group was given, by shard and id.
        snapshots: how often the view began anew.
        gaps: what the group was told of as missing.
        again: how often the group was given an entry that it had.
        broken: in words, what a subscriber ended with.
    """

    def __init__(self, url: str) -> None:
        self.online: set[str] = set()
        self.ids: dict[tuple[int, str], float] = {}
        self.snapshots = 0
        self.gaps = 0
        self.again = 0
        self.broken: list[str] = []
        self._is_closing = threading.Event()
        self._view = follow_sync(url)
        self._group = subscribe_sync(url, group=GROUP, consumer="one", after="0", claim_idle_s=CLAIM_IDLE_S)
        runs = {"view": self._follow, "group": self._consume}
        self._threads = [
            threading.Thread(target=self._guarded, args=(name, run), name=name, daemon=True)
            for name, run in runs.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both."""
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
                self._is_closing.wait(AGAIN_S)

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
            self.again += (event.shard, event.id) in self.ids
            self.ids[event.shard, event.id] = time.monotonic()


def lost_by_group(
    ids: Mapping[tuple[int, str], float],
    given: Mapping[tuple[int, str], float],
    troubles: Sequence[Trouble],
    path: int,
) -> list[tuple[int, str]]:
    """Return the entries that a group was never given, though Redis had them for long enough.

    Args:
        ids: all entries, and when each stood.
        given: to the group.
        troubles: all that was done.
        path: the number of the subscribers' path to Redis.
    """
    matter = [
        each
        for each in troubles
        if each.scope is Place.REDIS or (each.scope is Place.PATH and each.place == path)
    ]
    behind = [_behind(each, matter) for each in troubles if each.kind in FORGETS]
    return sorted(
        key
        for key, stood in [*ids.items()]  # the collector's thread goes on
        if key not in given and not any(begin <= stood <= end for begin, end in behind)
    )


def _behind(forgets: Trouble, troubles: Sequence[Trouble]) -> tuple[float, float]:
    """Return the span before Redis forgot in which a reader may not have read what was new."""
    begin = forgets.begin - BEHIND_S
    while earlier := [each.begin for each in troubles if each.begin < begin <= each.end + BEHIND_S]:
        begin = min(earlier)
    return begin, forgets.end
