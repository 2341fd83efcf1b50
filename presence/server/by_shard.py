"""One pass over elements of all shards that several shards share."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Each = TypeVar("Each")


class ByShard(Generic[Each]):
    """One lazy pass over elements of all shards, shared by the shards: O(1) per element.

    Args:
        found: elements of all shards.
        shard_of: the shard of an element, from 0 to `shards` - 1.
        shards: number of shards.
    """

    def __init__(self, found: Iterator[Each], shard_of: Callable[[Each], int], shards: int) -> None:
        self._rest = found
        self._shard_of = shard_of
        self._found: list[deque[Each]] = [deque() for _ in range(shards)]
        self._asked = [False] * shards

    def is_untaken(self, shard: int) -> bool:
        """Whether `items_of` was not called for this shard yet."""
        return not self._asked[shard]

    def items_of(self, shard: int) -> Iterator[Each]:
        """Return the elements of a shard, in order; call it once per shard."""
        self._asked[shard] = True
        return self._items_of(shard)

    def _items_of(self, shard: int) -> Iterator[Each]:
        found = self._found[shard]
        while True:
            while found:
                yield found.popleft()
            for each in self._rest:
                self._found[self._shard_of(each)].append(each)
                if found:
                    break
            else:
                return
