"""How much a deployment needs, from measured costs: pure.

Each cost is a range: the least and the most that was measured on two shared cores, under different loads
(docs/benchmarks.md names the commands). What is needed is a range, too. Nothing here knows your processors:
measure yours with the same commands, and scale.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from presence.core.engine import KEEPALIVE_SHARE

DAY_S: Final = 86_400.0
RESERVED_SHARE: Final = 0.05  # of the descriptors, for Redis and files
SPARE: Final = 1.5  # what was measured, and half as much again
MB: Final = 1e6


class Cost(NamedTuple):
    """The least and the most."""

    least: float
    most: float

    def times(self, count: float) -> "Cost":
        return Cost(self.least * count, self.most * count)

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.least + other.least, self.most + other.most)


NOTHING: Final = Cost(0.0, 0.0)

# µs of CPU of the server
KEEPALIVE_US: Final = Cost(15.0, 19.4)  # answered
KEEPALIVE_TLS_US: Final = Cost(6.0, 6.0)  # more
VISIT_US: Final = Cost(103.0, 450.0)  # a login and a logout: crowded on one worker, rare on six
TOKEN_US: Final = Cost(33.0, 117.0)  # more
HANDSHAKE_US: Final = Cost(1000.0, 1500.0)  # more, over TLS
# bytes of the servers' memory
PROCESS_BYTES: Final = Cost(18e6, 59e6)  # a worker among others, which share pages; one alone
ADMIN_BYTES: Final = Cost(49e6, 49e6)
CONNECTION_BYTES: Final = Cost(303.0, 600.0)
TLS_BYTES: Final = Cost(16_300.0, 16_300.0)  # more
# µs of CPU, and bytes, of Redis
TRANSITION_US: Final = Cost(8.6, 31.0)  # many together; a second of some hundreds
NODE_US: Final = Cost(344.0, 609.0)  # per second
ONLINE_BYTES: Final = Cost(329.0, 329.0)
REMEMBERED_BYTES: Final = Cost(80.0, 136.0)
EVENT_BYTES: Final = Cost(113.0, 113.0)


@dataclass(frozen=True)
class Demand:
    """What users do.

    Attributes:
        users: who come at all; all are remembered.
        visits: of each per day.
        minutes: that a visit takes.
        peak: how many times the mean the busiest moment is.
        idle_timeout: T, seconds.
        tls: whether clients connect over TLS.
        tokens: whether they log in with tokens.
        descriptors: open files that one process may have.
        events: kept in the stream.
    """

    users: int
    visits: float = 10.0
    minutes: float = 10.0
    peak: float = 3.0
    idle_timeout: float = 30.0
    tls: bool = True
    tokens: bool = True
    descriptors: int = 20_000
    events: int = 1_000_000

    @property
    def online(self) -> int:
        """Users online at the peak: by Little's law, and never more than there are."""
        mean = self.users * self.visits * self.minutes * 60 / DAY_S
        return min(self.users, math.ceil(mean * self.peak))

    @property
    def visits_per_s(self) -> float:
        """Logins per second at the peak, and as many logouts."""
        return self.users * self.visits / DAY_S * self.peak

    @property
    def keepalives_per_s(self) -> float:
        """Keepalives per second at the peak."""
        return self.online / (KEEPALIVE_SHARE * self.idle_timeout)


@dataclass(frozen=True)
class Need:
    """What that takes at the peak, without spare, and how long events are kept."""

    cores: Cost  # of the servers
    workers: int
    memory: Cost  # bytes of the servers
    redis_cores: Cost
    redis_memory: Cost  # bytes
    log_in_all_s: Cost  # CPU seconds until all users online have logged in again, over all cores
    events_h: Cost  # hours after which the stream drops an event: at the peak, and on average


def need(demand: Demand) -> Need:
    keepalive = KEEPALIVE_US.plus(KEEPALIVE_TLS_US if demand.tls else NOTHING)
    visit = VISIT_US.plus(TOKEN_US if demand.tokens else NOTHING).plus(
        HANDSHAKE_US if demand.tls else NOTHING
    )
    cores = keepalive.times(demand.keepalives_per_s).plus(visit.times(demand.visits_per_s)).times(1e-6)
    usable = demand.descriptors * (1 - RESERVED_SHARE)
    workers = max(1, math.ceil(demand.online / usable), math.ceil(cores.most * SPARE))
    connection = CONNECTION_BYTES.plus(TLS_BYTES if demand.tls else NOTHING)
    memory = PROCESS_BYTES.times(workers).plus(connection.times(demand.online)).plus(ADMIN_BYTES)
    redis_us = TRANSITION_US.times(2 * demand.visits_per_s).plus(NODE_US.times(workers))
    redis_memory = ONLINE_BYTES.times(demand.online).plus(EVENT_BYTES.times(demand.events))
    redis_memory = redis_memory.plus(REMEMBERED_BYTES.times(demand.users - demand.online))
    log_in_all_s = visit.times(demand.online * 1e-6)
    return Need(cores, workers, memory, redis_us.times(1e-6), redis_memory, log_in_all_s, _events_h(demand))


def _events_h(demand: Demand) -> Cost:
    """Return how many hours of events are kept: a visit is two events."""
    mean_h = 24 * demand.events / (2 * demand.users * demand.visits)
    return Cost(*sorted((mean_h / demand.peak, mean_h)))
