"""What stands in the streams of a run, read when it is over."""

from collections.abc import Iterator
from typing import Any

from loadtest.channel.entries import TYPES, Entry, entry_of
from presence.store.keys import Keys

PAGE = 2000


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


def count_entries(client: Any, keys: Keys) -> int:
    """Return how many entries there are, of all kinds."""
    return sum(int(client.xlen(keys.events(shard))) for shard in range(keys.shards))
