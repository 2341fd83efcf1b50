"""A pass over elements of all shards, read no further than needed."""

from itertools import islice

from presence.server.by_shard import ByShard


def test_items_are_split_by_shard_once_and_read_no_further_than_needed() -> None:
    found = iter(range(100))
    parted = ByShard(found, lambda number: number % 2, 2)
    assert len(list(islice(parted.items_of(1), 5))) == 5
    assert len(list(found)) == 90
    assert (parted.is_untaken(0), parted.is_untaken(1)) == (True, False)
