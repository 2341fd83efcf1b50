"""Time for decisions and time for people.

Decisions use monotonic seconds. Unix milliseconds are the wall clock read once, at start, plus the
monotonic time since: no later step of the wall clock can move them.
"""

import math
import time
from collections.abc import Callable


class Clock:
    """A monotonic clock that can name its moments in Unix milliseconds.

    Args:
        monotonic: seconds that never go back; tests pass a clock of their own.
        wall: Unix seconds, read once.

    Attributes:
        now: the monotonic clock itself.
    """

    __slots__ = ("_offset_s", "now")

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.now = monotonic
        self._offset_s = wall() - monotonic()

    def seen_ms(self, at: float) -> int:
        """Unix ms of a moment at which something was seen, rounded down."""
        return math.floor((at + self._offset_s) * 1000)

    def decided_ms(self, at: float) -> int:
        """Unix ms of a decision, rounded up, so that none is ever dated before it was taken."""
        return math.ceil((at + self._offset_s) * 1000)
