"""How late the event loop is: a task that wakes up regularly, and sees when it does.

Four times a second is often enough that a stall of a quarter of a second is not missed, and seldom enough to
cost nothing. It is late by what the tasks before it took, and by what the machine kept the process waiting.
"""

from typing import Final

from presence.clock import Clock
from presence.histograms import Histogram
from presence.runtime import Runtime

INTERVAL_S: Final = 0.25


async def watch(lags: Histogram, clock: Clock, runtime: Runtime) -> None:
    """Measure until cancelled."""
    while True:
        due = clock.now() + INTERVAL_S
        await runtime.sleep(INTERVAL_S)
        lags.note(clock.now() - due)
