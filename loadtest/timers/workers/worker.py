"""A worker process: it takes what is due, notes it down, says that it is done; until somebody kills it."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from presence.embedded import die_with_parent
from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.timers.delay_queue import DelayQueue
from presence.timers.handing import Leasing, SharedTimer
from presence.timers.ring_timer import RingTimer

POLL_S: Final = 0.01  # between two looks when nothing is due
SETTLED: Final = b"-\n"  # noted once `done` has answered for all before


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is to do.

    Attributes:
        url: of Redis.
        kind: of timer, "ring" or "queue".
        lease_s: see `Leasing`.
        slots, tick_s: of a ring.
        limit: events that it takes at once.
        handling_s: how long it takes over them; meanwhile it may be killed.
    """

    url: str
    kind: str
    lease_s: float
    slots: int
    tick_s: float
    limit: int
    handling_s: float = 0.0

    def timer(self, scripting: Scripting) -> SharedTimer:
        """Return the timer."""
        base = Keys().timer("loadtest")
        leasing = Leasing(lease_s=self.lease_s, attempts_max=100)
        if self.kind == "queue":
            return DelayQueue(scripting, base, leasing)
        return RingTimer(scripting, base, leasing, slots=self.slots, tick_s=self.tick_s)


def run(work: Work, notes: Path) -> None:
    """Take, note, settle. A note is one write: what was written before a kill stays."""
    ask_kernel = die_with_parent(signal.SIGKILL)
    if ask_kernel:
        ask_kernel()
    timer = work.timer(Scripting(work.url))
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        dues = timer.due(work.limit)
        if dues:
            lines = [f"{each.id} {each.attempt} {each.due_ms} {each.late_ms}\n" for each in dues]
            os.write(file, "".join(lines).encode())
            if work.handling_s:
                time.sleep(work.handling_s)
            timer.done(dues)
            os.write(file, SETTLED)
        else:
            time.sleep(POLL_S)
