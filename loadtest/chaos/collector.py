"""Reads the streams, entry by entry, beside the subscribers of the project, which are judged themselves."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from loadtest.chaos.truth import Forgot, Kept, Told
from loadtest.events import Event, WallClock, event_of
from presence.store.client import RedisError
from presence.store.failures import CONNECTION_LOST
from presence.store.keys import Keys
from presence.subscriber.events import ZERO_ID, read_entry

LOOK_S = 0.05
COUNT = 5000
PAUSED_MS = 10_000  # at most; it ends with the server that it was told to, or is ended
READY_S = 10.0


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
        self._told.append(Kept(self._numbers, time.monotonic()))
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
            event: Event = event_of(read_entry(shard, each), self.clock)
            self._last[shard] = event.id
            self.ids[shard, event.id] = event.stood
            self._told.append(event)
