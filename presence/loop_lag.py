"""How late the event loop is: a task that wakes up regularly, and sees when it does.

Four times a second is seldom enough to cost nothing. It is late by what the tasks before it took, and by what
the machine kept the process waiting, as far as that lasted beyond the moment when it was due. So a stall
looks up to a quarter of a second shorter than it was; none that is longer is missed, and shorter ones may be.
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
