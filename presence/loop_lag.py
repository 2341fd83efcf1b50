"""How late the event loop is: a task that wakes up regularly, and sees when it does.

Four times a second is seldom enough to cost nothing. It is late by what the tasks before it took, and by what
the machine kept the process waiting, as far as that lasted beyond the moment when it was due. So a stall
looks up to a quarter of a second shorter than it was; none that is longer is missed, and shorter ones may be.
One that operators should know of is logged when it is over.
"""

from typing import Final

import structlog

from presence.clock import Clock
from presence.histograms import Histogram
from presence.runtime import Runtime

INTERVAL_S: Final = 0.25
LOGGED_S: Final = 2.0  # clients that ask for answers notice nothing shorter

_log = structlog.get_logger(__name__)


async def watch(lags: Histogram, clock: Clock, runtime: Runtime) -> None:
    """Measure until cancelled."""
    while True:
        due = clock.now() + INTERVAL_S
        await runtime.sleep(INTERVAL_S)
        lag_s = clock.now() - due
        lags.note(lag_s)
        if lag_s >= LOGGED_S:
            _log.warning("event loop stood still", seconds=round(lag_s, 1))
