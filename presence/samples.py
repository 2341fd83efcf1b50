"""What a worker's sample says beside figures; `presence.server.Server.sample` makes one.

A sample is all figures of a worker of one moment, as one map for operators: counters rise while the process
lives, gauges say how it stands. Making one costs the same however many sessions there are.
"""

from enum import Enum
from typing import Final

VERSION: Final = 1  # a process that serves operators and finds another one here says so


class Readiness(Enum):
    """Whether a worker can serve clients, and what keeps it from that."""

    STARTING = "starting"
    READY = "ready"
    REDIS_AWAY = "redis_away"  # its lease has ended, and it serves clients from memory
    FENCED = "fenced"  # other nodes took it for dead, and its sessions are not all registered anew
    DRAINING = "draining"

    @property
    def serves(self) -> bool:
        """Whether clients may be sent here. Without Redis they may: an outage of Redis hits all nodes."""
        return self in {Readiness.READY, Readiness.REDIS_AWAY}
