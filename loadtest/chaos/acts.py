"""What clients are to do, and when: used in their thread only."""

import heapq
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from loadtest.chaos.truth import Login

LEAVES_S = 30.0  # after which a connection that was left half open is closed

Ended = Callable[[str, Login, float, str, bool], None]
"""Told of a connection that ended unasked: uid, login, when, the server's reason, whether for good."""


class Gone(NamedTuple):
    """Clients that do not come back soon: their share, and between which seconds they do."""

    share: float
    seconds: tuple[float, float]


class Acts:
    """An agenda.

    Args:
        idle_s: how long after its last packet a client must have been ended, at a node that is well.
        grace_s: the servers' grace after a lost connection.
        tell: see `Ended`.
        gone: of those who lose their connection without a word this share is away for so long, in seconds.

    Attributes:
        is_acting: whether clients do anything but beat and come back.
        deeds: what they did, how often.
    """

    def __init__(self, idle_s: float, grace_s: float, tell: Ended, gone: Gone) -> None:
        self.idle_s = idle_s
        self.grace_s = grace_s
        self.tell = tell
        self.gone = gone
        self.is_acting = False
        self.deeds: Counter[str] = Counter()
        self._acts: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()
        self._left_open: set[int] = set()

    @property
    def due(self) -> float:
        """When the next of them is to be done; infinite without one."""
        return self._acts[0][0] if self._acts else math.inf

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Have something done in a while."""
        heapq.heappush(self._acts, (time.monotonic() + seconds, next(self._sequence), act))

    def run_due(self, now: float) -> None:
        """Do what is due."""
        while self._acts and self._acts[0][0] <= now:
            heapq.heappop(self._acts)[2]()

    def left_open(self, fd: int) -> None:
        """A connection was left half open: close it after a long while."""
        self._left_open.add(fd)

        def close() -> None:
            self._left_open.discard(fd)
            os.close(fd)

        self.after(LEAVES_S, close)

    def close(self) -> None:
        """Close what was left open."""
        for fd in self._left_open:
            os.close(fd)
