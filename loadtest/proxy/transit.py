"""Bytes under way in one direction of one connection: a queue in which each piece has its time. No I/O."""

import math
import random
from collections import deque
from enum import Enum
from typing import Final

from loadtest.proxy.faults import Faults

RATE_STEP_S: Final = 0.01  # a limit of bytes a second lets through what makes up so much time, at once


class Mark(Enum):
    """What is passed on beside bytes, and in its place among them."""

    END = "the sender has ended its side"
    RESET = "the sender has reset the connection"


class Transit:
    """Pieces in order, each with the moment before which it must not arrive. Nothing overtakes.

    Attributes:
        size: bytes in it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: deque[tuple[float, bytes | Mark]] = deque()
        self._last_due = 0.0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def due(self) -> float:
        """When the first piece may arrive; infinite without one."""
        return self._pieces[0][0] if self._pieces else math.inf

    def put(self, data: bytes | Mark, now: float, faults: Faults) -> int:
        """Add what came; return in how many pieces it goes on."""
        if isinstance(data, Mark):
            self._add(data, now, faults)
            return 1
        self.size += len(data)
        start = pieces = 0
        while start < len(data):
            end = start + _length(len(data) - start, faults)
            self._add(data[start:end], now, faults)
            start = end
            pieces += 1
        return pieces

    def take(self) -> bytes | Mark:
        """Take the first piece out."""
        _, data = self._pieces.popleft()
        if not isinstance(data, Mark):
            self.size -= len(data)
        return data

    def put_back(self, rest: bytes) -> None:
        """Let what could not be sent be the first piece again."""
        self.size += len(rest)
        self._pieces.appendleft((0.0, rest))

    def clear(self) -> None:
        """Forget all."""
        self._pieces.clear()
        self.size = 0

    def _add(self, data: bytes | Mark, now: float, faults: Faults) -> None:
        due = now
        if faults.delays:
            due = max(now + faults.latency_s + random.uniform(0, faults.jitter_s), self._last_due)
            if faults.bytes_per_s and not isinstance(data, Mark):
                due += len(data) / faults.bytes_per_s
        self._last_due = due = max(due, self._last_due)
        self._pieces.append((due, data))


def _length(there: int, faults: Faults) -> int:
    """Return how many of the bytes that are there go on together."""
    length = random.randint(1, faults.slice_bytes) if faults.slice_bytes else there
    if faults.bytes_per_s:
        length = min(length, max(1, int(faults.bytes_per_s * RATE_STEP_S)))
    return min(length, there)
