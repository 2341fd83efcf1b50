"""What the connections of a proxy share: the faults set, the count of what was done, whose turn it is."""

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from loadtest.proxy.faults import CLEAR, Faults, Injected


class Way(Enum):
    """A direction."""

    UP = "towards the target"
    DOWN = "back"


class Common:
    """Used in the proxy's thread only.

    Attributes:
        faults: of each way.
        injected: what was done.
        drops_left: how many more replies are to be lost.
        containing: of requests with these bytes in their beginning.
    """

    def __init__(self) -> None:
        self.faults: dict[Way, Faults] = dict.fromkeys(Way, CLEAR)
        self.injected = Injected()
        self.drops_left = 0
        self.containing = b""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._turns: deque[Callable[[], None]] = deque()

    @property
    def is_hole(self) -> bool:
        """Whether one of the ways lets nothing through."""
        return any(faults.blackhole for faults in self.faults.values())

    def takes(self, request: bytes) -> bool:
        """Whether the reply to a request that begins so is to be lost; then one fewer is left."""
        if not self.drops_left or self.containing not in request:
            return False
        self.drops_left -= 1
        return True

    def at(self, due: float, act: Callable[[], None]) -> None:
        """Have something done at that moment."""
        heapq.heappush(self._timers, (due, next(self._numbers), act))

    def soon(self, act: Callable[[], None]) -> None:
        """Have something done after others had their turn."""
        self._turns.append(act)

    def wait_s(self) -> float:
        """Return for how long there is nothing to do; infinite if there is nothing to do at all."""
        if self._turns:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else math.inf

    def run_due(self) -> None:
        """Do what is due, and give each who waits for a turn one."""
        timers = self._timers
        if timers:
            now = time.monotonic()
            while timers and timers[0][0] <= now:
                heapq.heappop(timers)[2]()
        for _ in range(len(self._turns)):
            self._turns.popleft()()
