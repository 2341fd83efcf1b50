"""How long the event loop was held: every stretch in which no other task could run, by trio's own account."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
from trio.lowlevel import Task


class Stretches(trio.abc.Instrument):
    """The longest time between two checkpoints of one task, and the time that the garbage collector took.

    Attributes:
        longest_s: the longest stretch since `clear`, seconds.
        longest_task: name of the task whose it was.
        over: stretches longer than `LIMIT_S`.
        gc_longest_s: the longest collection; it is part of some task's stretch.
        gc_s: all collections.
    """

    LIMIT_S = 0.020  # what a client may notice

    def __init__(self) -> None:
        self._gc_begun = 0.0
        self.clear()

    def clear(self) -> None:
        """Begin again, with the present task's stretch too."""
        self._begun = time.perf_counter()
        self.longest_s, self.longest_task, self.over = 0.0, "", 0
        self.gc_longest_s = self.gc_s = 0.0

    def before_task_step(self, task: Task) -> None:
        """See trio's Instrument."""
        self._begun = time.perf_counter()

    def after_task_step(self, task: Task) -> None:
        """See trio's Instrument."""
        took = time.perf_counter() - self._begun
        if took > self.longest_s:
            self.longest_s, self.longest_task = took, task.name
        self.over += took > self.LIMIT_S

    def _collected(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_begun = time.perf_counter()
            return
        took = time.perf_counter() - self._gc_begun
        self.gc_longest_s = max(self.gc_longest_s, took)
        self.gc_s += took


@contextmanager
def watched() -> Iterator[Stretches]:
    """Watch this trio run, for the length of a ``with`` block."""
    stretches = Stretches()
    trio.lowlevel.add_instrument(stretches)
    gc.callbacks.append(stretches._collected)
    try:
        yield stretches
    finally:
        gc.callbacks.remove(stretches._collected)
        trio.lowlevel.remove_instrument(stretches)
