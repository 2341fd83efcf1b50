"""A monotonic clock for decisions, and its conversion to Unix time.

Decisions use monotonic seconds. Unix milliseconds are the wall clock, read once at start, plus the monotonic
time since: a later step of the wall clock does not move them.
"""

import math
import time
from collections.abc import Callable


class Clock:
    """A monotonic clock, `now`, with conversion to Unix milliseconds; `wall` is read once."""

    __slots__ = ("_offset_s", "now")

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.now = monotonic
        self._offset_s = wall() - monotonic()

    def seen_ms(self, at: float) -> int:
        """Return Unix milliseconds of an observation, rounded down."""
        return math.floor((at + self._offset_s) * 1000)

    def decided_ms(self, at: float) -> int:
        """Return Unix milliseconds of a decision, rounded up, so that none is dated before it was made."""
        return math.ceil((at + self._offset_s) * 1000)
