"""Plans: one fault after another, each by itself, with default settings and all the time that it takes; pure.

In a storm everything excuses something. Here nothing else is at work, so what is promised of a fault is
measured: how soon users are told offline, how soon they are back, how soon Redis is right again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.chaos.plan import EVERYWHERE, Fault, Kind, Storm
from loadtest.servers import Setup

BEGIN_S = 3.0  # clients act before the fault, too
STORY_S = 20.0  # clients act for so long at least
CLUSTER_SHARDS = 16  # the default of nodes on a cluster


@dataclass(frozen=True)
class Plan:
    """What is done, and under what.

    Attributes:
        words: what it is, for the help.
        rounds: the faults of each storm: kind, seconds (0: as long as the death of a node takes), place.
        nodes, clients: how many, unless the command says otherwise.
        gone_share: of the clients whose connection ends with their node so many do not come back in time.
        replicas: of each primary of a Redis Cluster of three; None: a plain Redis.
    """

    words: str
    rounds: Sequence[Sequence[tuple[Kind, float, int]]]
    nodes: int = 3
    clients: int = 600
    gone_share: float = 0.0
    replicas: int | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its faults."""
        return tuple(dict.fromkeys(kind for faults in self.rounds for kind, _, _ in faults))

    def setup(
        self, idle_timeout: float | None, lease: float | None, tick: float | None, shards: int
    ) -> Setup:
        """Return how servers are set up: as by default, where the command does not say otherwise."""
        usual = Setup()
        return Setup(
            idle_timeout or usual.idle_timeout,
            lease or usual.lease,
            tick or usual.tick,
            shards or (usual.shards if self.replicas is None else CLUSTER_SHARDS),
        )

    def storms(self, setup: Setup, seconds: float = 0.0) -> list[Storm]:
        """Return the storms; `seconds`: the longest that any fault may last, 0 for as long as planned."""
        return [
            [
                Fault(BEGIN_S, kind, _shorter(length, seconds) if length else setup.death_s, place)
                for kind, length, place in faults
            ]
            for faults in self.rounds
        ]


def _shorter(length: float, longest: float) -> float:
    return min(length, longest) if longest else length


PLANS: dict[str, Plan] = {
    "kill": Plan(
        "a node is killed; half of its users come back elsewhere",
        [[(Kind.KILL, 0.0, 0)]],
        nodes=4,
        clients=4000,
        gone_share=0.5,
    ),
    "sweeper": Plan(
        "a node is killed, and in mid-sweep the one that sweeps after it",
        [[(Kind.SWEEPER, 0.0, 0)]],
        nodes=4,
        clients=4000,
        gone_share=0.5,
    ),
    "stall": Plan(
        "five of six nodes are stopped (SIGSTOP) for 1, 5, 29, 31 and 60 s",
        [
            [
                *((Kind.STOP, length, place) for place, length in enumerate((1.0, 5.0, 29.0, 31.0))),
                (Kind.STOP_LONG, 60.0, 4),
            ]
        ],
        nodes=6,
    ),
    "stall-alone": Plan(
        "one node without a peer is stopped for 60 s: nobody ends",
        [[(Kind.STOP_LONG, 60.0, 0)]],
        nodes=1,
        clients=200,
    ),
    "outage": Plan(
        "Redis is stopped, then killed, for 60 s; then one node is cut off from it",
        [[(Kind.REDIS_STOP, 60.0, 0)], [(Kind.REDIS_KILL, 60.0, 0)], [(Kind.PATH_HOLE_LONG, 60.0, 0)]],
    ),
    "loss": Plan(
        "FLUSHALL; Redis back empty; Redis back without its last writes; failovers that lose writes",
        [
            [(Kind.FLUSH, 0.1, 0)],
            [(Kind.REDIS_EMPTY, 3.0, 0)],
            [(Kind.REDIS_BACK, 3.0, 0)],
            [(Kind.FAILOVER, 3.0, 0)],
            [(Kind.FAILOVER_KILL, 3.0, 0)],
        ],
    ),
    "redis": Plan(
        "slow for all nodes, replies lost, scripts flushed, out of memory, each for 20 s",
        [
            [(Kind.PATH_LATENCY, 20.0, EVERYWHERE)],
            [(Kind.PATH_DROP, 20.0, EVERYWHERE)],
            [(Kind.SCRIPT_FLUSH, 20.0, 0)],
            [(Kind.MEMORY, 20.0, 0)],
        ],
    ),
    "cluster": Plan(
        "a Redis Cluster of 3 + 3: primaries hand over; one is killed",
        [[(Kind.HANDOVER, 20.0, 0)], [(Kind.PRIMARY_KILL, 3.0, 0)]],
        replicas=1,
    ),
    "slots": Plan(
        "a Redis Cluster of 3: a primary is stopped; slots move key by key, and at once",
        [[(Kind.PRIMARY_STOP, 20.0, 0)], [(Kind.MOVE_KEYS, 20.0, 0)], [(Kind.MOVE_SLOTS, 20.0, 0)]],
        replicas=0,
    ),
    "rolling": Plan(
        "all nodes are restarted, one after the other",
        [[(Kind.ROLLING, 16.0, 0)]],
        clients=3000,
    ),
}
