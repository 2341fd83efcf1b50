"""Virtual time: what is to happen, in the order of its moments."""

import heapq
from collections.abc import Callable
from itertools import count

Act = Callable[[], object]


class Agenda:
    """Things to come. Of two at one moment the one that was entered first happens first.

    Attributes:
        now: true seconds since the simulation began; nobody's clock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Act]] = []
        self._numbers = count()

    def at(self, moment: float, act: Act) -> None:
        """Let something happen; at once if its moment has passed."""
        heapq.heappush(self._heap, (max(moment, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Act) -> None:
        """Let something happen some true seconds from now."""
        self.at(self.now + seconds, act)

    def run(self, until: float) -> int:
        """Let everything happen that is due; return how much it was."""
        heap, done = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, act = heapq.heappop(heap)
            act()
            done += 1
        self.now = until
        return done
