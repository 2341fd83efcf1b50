"""What goes wrong, and when: drawn from a seed, pure.

A run is made of rounds. A round begins with a storm, in which faults overlap, and ends with a calm, in which
everything has to come to rest. Two faults of one thing (Redis, a process, a path) do not overlap.

In a storm everything excuses something. A `ChaosPlan` injects one fault after another, each with all the time
that it takes, so that its promise can be measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import NamedTuple

from loadtest.servers import Setup

STORM_S = 50.0
GAP_S = 1.0  # between two faults of one thing
MAX_TRIES = 200
MIN_PER_HALF_HOUR = 10  # of each kind
SPARES = 3  # of each kind in half an hour: a fault can find nothing to disturb
BEGIN_S = 3.0  # clients act before the fault, too
MIN_ACTING_S = 20.0  # clients act for so long at least
CLUSTER_SHARDS = 16  # the default of nodes on a cluster


class Place(Enum):
    """What a fault is done to."""

    REDIS = "Redis"
    NODE = "one node's process"
    ALL_NODES = "every node, one after the other"
    PATH = "the path between a node, or the subscribers, and Redis"
    CLIENTS = "the path between a node and a part of its clients"
    PROJECTOR = "the projector of rooms beside those of the nodes"


class Spec(NamedTuple):
    """A kind's place, its shortest and longest duration in seconds, and a description."""

    place: Place
    min_s: float
    max_s: float
    description: str


class ChaosFaultKind(Enum):
    STOP = Spec(Place.NODE, 0.5, 4.0, "node stopped (SIGSTOP) for less than lease + T")
    STOP_LONG = Spec(Place.NODE, 9.5, 11.0, "node stopped for longer than lease + T")
    KILL = Spec(Place.NODE, 0.2, 3.0, "node killed (kill -9) and started again")
    ROLLING = Spec(Place.ALL_NODES, 16.0, 16.0, "rolling restart of all nodes")
    SWEEPER = Spec(Place.ALL_NODES, 16.0, 16.0, "node killed, and in mid-sweep the one that sweeps after it")
    REDIS_KILL = Spec(Place.REDIS, 0.3, 5.0, "Redis killed, data kept")
    REDIS_STOP = Spec(Place.REDIS, 0.5, 6.0, "Redis stopped (SIGSTOP)")
    REDIS_EMPTY = Spec(Place.REDIS, 0.1, 2.0, "Redis restarted empty")
    REDIS_BACK = Spec(Place.REDIS, 2.0, 5.0, "Redis restarted with a state some seconds old")
    FLUSH = Spec(Place.REDIS, 0.0, 0.0, "FLUSHALL")
    SCRIPT_FLUSH = Spec(Place.REDIS, 1.0, 3.0, "SCRIPT FLUSH, again and again")
    CLIENT_KILL = Spec(Place.REDIS, 0.5, 1.5, "CLIENT KILL of all, again and again")
    MEMORY = Spec(Place.REDIS, 2.0, 6.0, "Redis out of memory")
    FAILOVER = Spec(Place.REDIS, 2.0, 4.0, "Redis' replica takes its place; the old one goes on as a replica")
    FAILOVER_KILL = Spec(Place.REDIS, 2.0, 4.0, "Redis killed; its replica, which lagged, takes its place")
    PATH_LATENCY = Spec(Place.PATH, 3.0, 7.0, "path to Redis slow and jittery")
    PATH_HOLE = Spec(Place.PATH, 1.0, 6.0, "path to Redis a blackhole")
    PATH_HOLE_LONG = Spec(Place.PATH, 9.5, 11.0, "path to Redis a blackhole for longer than lease + T")
    PATH_HOLE_UP = Spec(Place.PATH, 1.0, 4.0, "path to Redis a blackhole, towards it only")
    PATH_HOLE_DOWN = Spec(Place.PATH, 1.0, 4.0, "path to Redis a blackhole, back from it only")
    PATH_RESET = Spec(Place.PATH, 0.5, 2.0, "connections to Redis reset, again and again")
    PATH_DROP = Spec(Place.PATH, 1.0, 3.0, "replies of Redis lost after it has carried out the call")
    PATH_SLICES = Spec(Place.PATH, 3.0, 6.0, "bytes from and to Redis in small pieces")
    CLIENTS_HOLE = Spec(Place.CLIENTS, 1.0, 8.0, "clients' path a blackhole")
    CLIENTS_HOLE_UP = Spec(Place.CLIENTS, 1.0, 8.0, "clients' path a blackhole, towards the node only")
    CLIENTS_HOLE_DOWN = Spec(Place.CLIENTS, 1.0, 8.0, "clients' path a blackhole, from the node only")
    CLIENTS_RESET = Spec(Place.CLIENTS, 0.0, 0.0, "half of the clients' connections reset")
    CLIENTS_LATENCY = Spec(Place.CLIENTS, 2.0, 6.0, "clients' path slow and jittery")
    CLIENTS_SLICES = Spec(Place.CLIENTS, 2.0, 6.0, "clients' bytes in small pieces")
    PROJECTOR_KILL = Spec(Place.PROJECTOR, 0.2, 5.0, "projector of rooms killed (kill -9) and started again")
    PRIMARY_KILL = Spec(Place.REDIS, 1.0, 3.0, "cluster: a primary killed, its replica takes over")
    PRIMARY_STOP = Spec(Place.REDIS, 4.0, 8.0, "cluster: a primary without a replica stopped (SIGSTOP)")
    HANDOVER = Spec(Place.REDIS, 4.0, 8.0, "cluster: primaries hand over to their replicas, one by one")
    MOVE_KEYS = Spec(Place.REDIS, 4.0, 8.0, "cluster: slots move key by key")
    MOVE_SLOTS = Spec(Place.REDIS, 4.0, 8.0, "cluster: slots move, each at once")
    SENTINEL_KILL = Spec(Place.REDIS, 1.0, 3.0, "Sentinels replace a primary that was killed and comes back")
    SENTINEL_STOP = Spec(Place.REDIS, 4.0, 8.0, "Sentinels replace a primary that was stopped and goes on")
    SENTINEL_FAILOVER = Spec(Place.REDIS, 2.0, 4.0, "Sentinels replace a primary that goes on all the time")


CLUSTER_FAULTS = frozenset(
    {
        ChaosFaultKind.PRIMARY_KILL,
        ChaosFaultKind.PRIMARY_STOP,
        ChaosFaultKind.HANDOVER,
        ChaosFaultKind.MOVE_KEYS,
        ChaosFaultKind.MOVE_SLOTS,
    }
)
SENTINEL_FAULTS = frozenset(
    {ChaosFaultKind.SENTINEL_KILL, ChaosFaultKind.SENTINEL_STOP, ChaosFaultKind.SENTINEL_FAILOVER}
)
# It takes as long as the death of a node does: in a plan of its own.
STORM_FAULTS = tuple(
    kind
    for kind in ChaosFaultKind
    if kind not in CLUSTER_FAULTS | SENTINEL_FAULTS and kind is not ChaosFaultKind.SWEEPER
)
ALL_PLACES = -1  # at each place of the kind at once


@dataclass(frozen=True)
class ChaosFault:
    at: float  # seconds from the beginning of its storm
    kind: ChaosFaultKind
    seconds: float
    place: int = 0  # of the node or path, the subscribers' path last; `ALL_PLACES`: all nodes


Storm = list[ChaosFault]


def rounds_in(minutes: float, calm_s: float, storm_s: float = STORM_S) -> int:
    return max(1, math.floor(minutes * 60 / (storm_s + calm_s)))


def times_each(minutes: float) -> int:
    """Return how often each kind is injected in a run."""
    return max(1, math.ceil((MIN_PER_HALF_HOUR + SPARES) * minutes / 30))


def draw(
    random: Random,
    rounds: int,
    times: int,
    nodes: int,
    kinds: Sequence[ChaosFaultKind],
    storm_s: float = STORM_S,
) -> list[Storm]:
    """Return the storms of a run.

    Args:
        times: how often each kind is injected.
        storm_s: how long a storm is to be; one with very many faults is longer.
    """
    dealt = [kind for kind in kinds for _ in range(times)]
    random.shuffle(dealt)
    # Each round gets its share of Redis' faults, which cannot overlap.
    dealt.sort(key=lambda kind: kind.value.place is Place.REDIS)
    return [_storm(random, dealt[number::rounds], nodes, storm_s) for number in range(rounds)]


def _storm(random: Random, kinds: Sequence[ChaosFaultKind], nodes: int, storm_s: float) -> Storm:
    busy: dict[tuple[Place, int], list[tuple[float, float]]] = {}
    faults: Storm = []
    for kind in sorted(kinds, key=lambda kind: (-kind.value.max_s, kind.name)):  # the long ones first
        spec = kind.value
        seconds = random.uniform(spec.min_s, spec.max_s)
        for _ in range(MAX_TRIES):
            at = random.uniform(0.0, max(0.1, storm_s - seconds))
            place, targets = _targets(random, spec.place, nodes)
            if all(_is_free(busy.get(target, ()), at, at + seconds) for target in targets):
                break
        else:
            at = max(end for target in targets for _, end in busy.get(target, [(0.0, 0.0)])) + GAP_S
        for target in targets:
            busy.setdefault(target, []).append((at, at + seconds))
        faults.append(ChaosFault(at, kind, seconds, place))
    return sorted(faults, key=lambda fault: fault.at)


def _targets(random: Random, place: Place, nodes: int) -> tuple[int, list[tuple[Place, int]]]:
    """Return a place's number, and what no other fault may be done to meanwhile."""
    match place:
        case Place.REDIS | Place.PROJECTOR:
            return 0, [(place, 0)]
        case Place.ALL_NODES:
            return 0, [(Place.NODE, node) for node in range(nodes)]
        case Place.PATH:
            number = random.randrange(nodes + 1)
        case _:
            number = random.randrange(nodes)
    return number, [(place, number)]


def _is_free(spans: Sequence[tuple[float, float]], begin: float, end: float) -> bool:
    return all(end + GAP_S <= first or last + GAP_S <= begin for first, last in spans)


@dataclass(frozen=True)
class ChaosPlan:
    description: str  # what it is, for the help
    # The faults of each storm: kind, seconds (0: as long as the death of a node takes), place
    rounds: Sequence[Sequence[tuple[ChaosFaultKind, float, int]]]
    # How many, unless the command says otherwise
    nodes: int = 3
    clients: int = 600
    # Of the clients whose connection ends with their node so many do not come back in time
    gone_share: float = 0.0
    replicas: int | None = None  # of each primary of a Redis Cluster of three; None: a plain Redis
    has_sentinels: bool = False  # three, which watch a Redis and its replica

    @property
    def kinds(self) -> tuple[ChaosFaultKind, ...]:
        return tuple(dict.fromkeys(kind for faults in self.rounds for kind, _, _ in faults))

    @property
    def setup(self) -> Setup:
        """The servers' settings, unless the command line overrides them."""
        return Setup(shards=1 if self.replicas is None else CLUSTER_SHARDS)

    def storms(self, setup: Setup, seconds: float = 0.0) -> list[Storm]:
        """Return the storms; `seconds` limits the length of each fault, 0: as planned."""
        return [
            [
                ChaosFault(
                    BEGIN_S, kind, min(length, seconds or length) if length else setup.node_down_s, place
                )
                for kind, length, place in faults
            ]
            for faults in self.rounds
        ]


PLANS: dict[str, ChaosPlan] = {
    "kill": ChaosPlan(
        "a node is killed; half of its users come back elsewhere",
        [[(ChaosFaultKind.KILL, 0.0, 0)]],
        nodes=4,
        clients=4000,
        gone_share=0.5,
    ),
    "sweeper": ChaosPlan(
        "a node is killed, and in mid-sweep the one that sweeps after it",
        [[(ChaosFaultKind.SWEEPER, 0.0, 0)]],
        nodes=4,
        clients=4000,
        gone_share=0.5,
    ),
    "stall": ChaosPlan(
        "five of six nodes are stopped (SIGSTOP) for 1, 5, 29, 31 and 60 s",
        [
            [
                *(
                    (ChaosFaultKind.STOP, length, place)
                    for place, length in enumerate((1.0, 5.0, 29.0, 31.0))
                ),
                (ChaosFaultKind.STOP_LONG, 60.0, 4),
            ]
        ],
        nodes=6,
    ),
    "stall-alone": ChaosPlan(
        "one node without a peer is stopped for 60 s: nobody ends",
        [[(ChaosFaultKind.STOP_LONG, 60.0, 0)]],
        nodes=1,
        clients=200,
    ),
    "outage": ChaosPlan(
        "Redis is stopped, then killed, for 60 s; then one node is cut off from it",
        [
            [(ChaosFaultKind.REDIS_STOP, 60.0, 0)],
            [(ChaosFaultKind.REDIS_KILL, 60.0, 0)],
            [(ChaosFaultKind.PATH_HOLE_LONG, 60.0, 0)],
        ],
    ),
    "loss": ChaosPlan(
        "FLUSHALL; Redis back empty; Redis back without its last writes; failovers that lose writes",
        [
            [(ChaosFaultKind.FLUSH, 0.1, 0)],
            [(ChaosFaultKind.REDIS_EMPTY, 3.0, 0)],
            [(ChaosFaultKind.REDIS_BACK, 3.0, 0)],
            [(ChaosFaultKind.FAILOVER, 3.0, 0)],
            [(ChaosFaultKind.FAILOVER_KILL, 3.0, 0)],
        ],
    ),
    "redis": ChaosPlan(
        "slow for all nodes, replies lost, scripts flushed, out of memory, each for 20 s",
        [
            [(ChaosFaultKind.PATH_LATENCY, 20.0, ALL_PLACES)],
            [(ChaosFaultKind.PATH_DROP, 20.0, ALL_PLACES)],
            [(ChaosFaultKind.SCRIPT_FLUSH, 20.0, 0)],
            [(ChaosFaultKind.MEMORY, 20.0, 0)],
        ],
    ),
    "cluster": ChaosPlan(
        "a Redis Cluster of 3 + 3: primaries hand over; one is killed",
        [[(ChaosFaultKind.HANDOVER, 20.0, 0)], [(ChaosFaultKind.PRIMARY_KILL, 3.0, 0)]],
        replicas=1,
    ),
    "slots": ChaosPlan(
        "a Redis Cluster of 3: a primary is stopped; slots move key by key, and at once",
        [
            [(ChaosFaultKind.PRIMARY_STOP, 20.0, 0)],
            [(ChaosFaultKind.MOVE_KEYS, 20.0, 0)],
            [(ChaosFaultKind.MOVE_SLOTS, 20.0, 0)],
        ],
        replicas=0,
    ),
    "sentinel": ChaosPlan(
        "a Redis and its replica, watched by Sentinels: the primary is killed, stopped, replaced on command",
        [
            [(ChaosFaultKind.SENTINEL_KILL, 3.0, 0)],
            [(ChaosFaultKind.SENTINEL_STOP, 8.0, 0)],
            [(ChaosFaultKind.SENTINEL_FAILOVER, 3.0, 0)],
        ],
        clients=1000,
        has_sentinels=True,
    ),
    "rolling": ChaosPlan(
        "all nodes are restarted, one after the other",
        [[(ChaosFaultKind.ROLLING, 16.0, 0)]],
        clients=3000,
    ),
}
