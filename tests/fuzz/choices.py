"""Decisions from bytes: mutations of the input become actions of a target."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads one decision after the other; after the last byte every decision is the first option.

    Args:
        data: the bytes, which begin with the first decision.
    """

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def __bool__(self) -> bool:
        """Whether there are bytes left."""
        return self._at < self._size

    def below(self, bound: int) -> int:
        """Return a number from 0 up to but not including `bound`, which is at most 256."""
        at = self._at
        if at >= self._size:
            return 0
        self._at = at + 1
        return self._data[at] % bound

    def of(self, options: Sequence[T]) -> T:
        """Return one of at most 256 options."""
        return options[self.below(len(options))]

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, or the remaining ones."""
        at = self._at
        self._at = at + count
        return self._data[at : at + count]

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(self._size)
