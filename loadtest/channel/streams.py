"""What stands in the streams of a run, read when it is over."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from loadtest.channel.entries import TYPES, Entry, entry_of
from presence.store.client import RedisError
from presence.store.keys import Keys

PAGE = 2000
LOOK_S = 0.3


def read_entries(client: Any, keys: Keys) -> Iterator[Entry]:
    """Return all entries that led a user to a state; each shard's in order."""
    for shard in range(keys.shards):
        begin = "-"
        while page := client.xrange(keys.events(shard), begin, "+", count=PAGE):
            for id, raw in page:
                fields = {name.decode(): value.decode() for name, value in raw.items()}
                if fields["type"] in TYPES:
                    yield entry_of(id.decode(), fields)
            begin = f"({page[-1][0].decode()}"


class Count:
    """How many entries there are, of all kinds, in a thread: Redis may be away, and clients go on.

    Attributes:
        entries: by the last look that Redis answered.
        looks: how many it did.
    """

    def __init__(self, client: Any, keys: Keys) -> None:
        self.entries = self.looks = 0
        self._client, self._keys = client, keys
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Count":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closing.wait(LOOK_S):
            with contextlib.suppress(RedisError):
                keys = self._keys
                self.entries = sum(self._client.xlen(keys.events(shard)) for shard in range(keys.shards))
                self.looks += 1
