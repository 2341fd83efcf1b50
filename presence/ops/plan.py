"""How much a deployment needs, from measured costs: pure.

Each cost is a range: the least and the most that was measured on two shared cores, under different loads
(docs/benchmarks.md names the commands). What is needed is a range, too. Nothing here knows your processors:
measure yours with the same commands, and scale.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from presence.core.engine import KEEPALIVE_SHARE
from presence.watching.shard_placement import MAX_USER_CHANNELS
from presence.watching.watch_quota import bytes_of_watches

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
WEBSOCKET_BYTES: Final = Cost(1_971.0, 1_971.0)  # more
UID_BYTES: Final = 12  # of a watched user
META_BYTES: Final = 160  # of a watched user who is online and has some 30 bytes of `meta`
# µs of CPU, and bytes, of Redis
TRANSITION_US: Final = Cost(8.6, 31.0)  # many together; a second of some hundreds
NODE_US: Final = Cost(344.0, 609.0)  # per second
ONLINE_BYTES: Final = Cost(329.0, 329.0)
REMEMBERED_BYTES: Final = Cost(80.0, 136.0)
EVENT_BYTES: Final = Cost(113.0, 113.0)
# of watching; µs of CPU of the servers
UPDATE_US: Final = Cost(156.0, 658.0)  # a change of status or meta: 800 per second on a worker; 30
HEARD_US: Final = Cost(46.0, 106.0)  # a change that Redis tells a worker: 20 in a message; alone
PUSH_US: Final = Cost(3.0, 4.8)  # a client told of a change, often of two; of one
ANSWER_US: Final = Cost(9.0, 14.5)  # a user in the answer to a watch
FOUND_US: Final = Cost(24.0, 54.0)  # more, if no client of the worker watched the user before
# … and of Redis
PUBLISHED_US: Final = Cost(2.0, 50.0)  # a change that workers learn of: in a batch of 64; alone
LISTENER_US: Final = Cost(0.1, 2.0)  # … and for each of these workers
READ_US: Final = Cost(2.0, 3.0)  # a user whom a worker did not know
CHANNEL_BYTES: Final = Cost(243.0, 270.0)  # a user's channel, for each worker
# … and bytes on the wire, with the headers of frames; names have 7 to 12 characters
CHANGE_BYTES: Final = Cost(32.0, 50.0)  # several in a packet; alone
STATE_BYTES: Final = Cost(12.0, 32.0)  # in an answer: never seen; online
CLASSIC_CHANGE_BYTES: Final = Cost(96.0, 104.0)  # for clients that do not say `batch` at login
CLASSIC_STATE_BYTES: Final = Cost(50.0, 79.0)


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
        websocket: share of the clients that connect over WebSocket, 0 to 1.
        friends: whom each client watches, on average; friends are mutual, and any users.
        changes: per cent of the users online who change status or meta in a minute.
        batch: whether clients say so at login, as the libraries of this release do.
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
    websocket: float = 0.0
    friends: float = 0.0
    changes: float = 0.0
    batch: bool = True

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

    @property
    def updates_per_s(self) -> float:
        """Changes of status or meta per second at the peak."""
        return self.online * self.changes / 100 / 60

    @property
    def changes_per_s(self) -> float:
        """All changes that watchers see, per second at the peak: users come, go, and change."""
        return 2 * self.visits_per_s + self.updates_per_s

    @property
    def told(self) -> float:
        """How many clients are told of a change: the user's friends who are online."""
        return self.friends * self.online / self.users


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
    watches: int  # of each worker
    watched_users: int  # of each worker: whom these concern
    watch_memory: Cost  # bytes of each worker that these are counted as; part of `memory`
    to_clients: Cost  # bytes per second, of watching alone


class _Watching(NamedTuple):
    """What the clients of one worker watch, and what Redis tells the worker."""

    watches: int
    users: int  # whom they concern, each once
    heard_per_s: float  # changes that the worker is told of
    counted_bytes: Cost


def _watching(demand: Demand, workers: int) -> _Watching:
    """Return what a worker has to do with watches; users with friends in common are there once."""
    watches = math.ceil(demand.online * demand.friends / workers)
    users = round(demand.users * (1 - (1 - 1 / demand.users) ** watches))
    share = 1.0 if users > MAX_USER_CHANNELS else users / demand.users
    plain = bytes_of_watches(
        users=users,
        name_bytes=UID_BYTES * users,
        watches=watches,
        sessions=demand.online // workers if watches else 0,
    )
    with_meta = plain + META_BYTES * users * demand.online / demand.users
    return _Watching(watches, users, demand.changes_per_s * share, Cost(plain, with_meta))


def need(demand: Demand) -> Need:
    """Return what a demand takes.

    Raises:
        ValueError: more changes than a worker can be told of.
    """
    visit = VISIT_US.plus(TOKEN_US if demand.tokens else NOTHING).plus(
        HANDSHAKE_US if demand.tls else NOTHING
    )
    workers = _workers(demand, visit)
    watching = _watching(demand, workers)
    known = watching.users / demand.users
    login = visit.plus(ANSWER_US.times(demand.friends))
    cores = _busy(demand, visit).plus(HEARD_US.times(watching.heard_per_s * workers * 1e-6))
    cores = cores.plus(FOUND_US.times(demand.visits_per_s * demand.friends * (1 - known) * 1e-6))
    connection = CONNECTION_BYTES.plus(TLS_BYTES if demand.tls else NOTHING)
    connection = connection.plus(WEBSOCKET_BYTES.times(demand.websocket))
    memory = PROCESS_BYTES.times(workers).plus(connection.times(demand.online)).plus(ADMIN_BYTES)
    memory = memory.plus(watching.counted_bytes.times(workers))
    redis_us = TRANSITION_US.times(demand.changes_per_s).plus(NODE_US.times(workers))
    redis_us = redis_us.plus(PUBLISHED_US.times(watching.heard_per_s))
    redis_us = redis_us.plus(LISTENER_US.times(watching.heard_per_s * workers))
    redis_us = redis_us.plus(READ_US.times(demand.visits_per_s * demand.friends * (1 - known)))
    redis_memory = ONLINE_BYTES.times(demand.online).plus(EVENT_BYTES.times(demand.events))
    redis_memory = redis_memory.plus(REMEMBERED_BYTES.times(demand.users - demand.online))
    redis_memory = redis_memory.plus(CHANNEL_BYTES.times(min(watching.users, MAX_USER_CHANNELS) * workers))
    change, state = (
        (CHANGE_BYTES, STATE_BYTES) if demand.batch else (CLASSIC_CHANGE_BYTES, CLASSIC_STATE_BYTES)
    )
    to_clients = change.times(demand.changes_per_s * demand.told)
    to_clients = to_clients.plus(state.times(demand.visits_per_s * demand.friends))
    return Need(
        cores,
        workers,
        memory,
        redis_us.times(1e-6),
        redis_memory,
        login.times(demand.online * 1e-6),
        _events_h(demand),
        watching.watches,
        watching.users,
        watching.counted_bytes,
        to_clients,
    )


def _busy(demand: Demand, visit: Cost) -> Cost:
    """Return the cores of the servers, beside what each worker must know of the changes of all users."""
    keepalive = KEEPALIVE_US.plus(KEEPALIVE_TLS_US if demand.tls else NOTHING)
    busy = keepalive.times(demand.keepalives_per_s).plus(visit.times(demand.visits_per_s))
    busy = busy.plus(UPDATE_US.times(demand.updates_per_s))
    busy = busy.plus(PUSH_US.times(demand.changes_per_s * demand.told))
    busy = busy.plus(ANSWER_US.times(demand.visits_per_s * demand.friends))
    return busy.times(1e-6)


def _workers(demand: Demand, visit: Cost) -> int:
    usable = demand.descriptors * (1 - RESERVED_SHARE)
    workers = max(1, math.ceil(demand.online / usable), math.ceil(_busy(demand, visit).most * SPARE))
    if not demand.friends:
        return workers
    left = 1 - HEARD_US.most * SPARE * _watching(demand, workers).heard_per_s * 1e-6  # of a core, of each
    if left <= 0:
        raise ValueError(f"{demand.changes_per_s:,.0f} changes per second are more than a worker can follow")
    return max(workers, math.ceil(_busy(demand, visit).most * SPARE / left))


def _events_h(demand: Demand) -> Cost:
    """Return how many hours of events are kept: a visit is two events, an update one."""
    at_peak_h = demand.events / demand.changes_per_s / 3600
    return Cost(*sorted((at_peak_h, at_peak_h * demand.peak)))
