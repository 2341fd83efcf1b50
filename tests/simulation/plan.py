"""What a seed stands for: a cluster, its users and what they do, and the faults; all of it data.

What is drawn at random while a simulation runs is drawn by each device, connection and process for itself, so
that leaving out one of them changes little for the others: a failing plan can be made smaller.
"""

from dataclasses import dataclass
from enum import Enum

from presence.config.settings import Settings
from presence.protocol.constants import Status


class DeviceAction(Enum):
    """What a device does besides sending keepalives."""

    SILENT = "falls silent: its network is dead for so long; no FIN"
    LOGOUT = "logs out, and comes back later"
    DROP = "closes its connection, and comes back later"
    MOVE = "leaves its connection half open and logs in elsewhere"
    TWICE = "logs in elsewhere though its connection is fine"
    NEAR = "beats close to its time-out for so long"


@dataclass(frozen=True)
class Action:
    """What a device does at a moment."""

    at: float  # true seconds
    kind: DeviceAction  # what
    seconds: float = 0.0  # how long it lasts; infinity: for good


@dataclass(frozen=True)
class ShownStatus:
    """How a device shows itself from a moment on."""

    at: float  # true seconds
    status: Status = "online"  # as it says
    meta: str = ""  # what it says of itself to others
    private: str = ""  # and to the backend only
    idle_timeout: float | None = None  # that it asks for with this, seconds
    ends_at: float | None = None  # true seconds at which the status from before is back; None: never


@dataclass(frozen=True)
class ChosenRooms:
    """The rooms that a device is in from a moment on."""

    at: float  # true seconds
    rooms: frozenset[str]
    as_difference: bool = False  # whether it names those that it joins and leaves, not all of them


@dataclass(frozen=True)
class DevicePlan:
    """One device of one user."""

    name: str  # unique; seeds what it draws
    uid: str
    device: str
    idle_timeout: float | None  # as it wishes, seconds; None: the server's
    asks: bool  # whether it notices a dead server and goes elsewhere, as the client library does
    start: float  # true seconds of its first login
    actions: tuple[Action, ...]  # in order
    statuses: tuple[ShownStatus, ...] = ()  # in order
    device_class: str = ""
    rooms: tuple[ChosenRooms, ...] = ()  # in order


class FaultKind(Enum):
    """Faults. `SimulatedFault.seconds` is how long one lasts, or until the process is started again."""

    STOP = "a process is stopped"
    STUTTER = "a process is busy for most of a tick, again and again"
    CRASH_RESET = "a process is killed; its machine resets the connections"
    CRASH_SILENT = "a machine dies; its connections stay half open"
    DRAIN = "a process gets SIGTERM, and is started again"
    JOIN = "one more node"
    CUT_ALL = "a process is cut from Redis"
    CUT_LEASES = "a process cannot reach the table of leases"
    CUT_SHARDS = "a process cannot reach the shards"
    CUT_SWEEPS = "a process cannot fence or sweep"
    CLIENTS_CUT = "a process's clients are cut from it"
    REDIS_AWAY = "Redis is unreachable for all"
    REDIS_SLOW = "Redis answers slowly"
    REDIS_EMPTY = "Redis restarts empty"
    REDIS_BACK = "Redis restarts with an earlier state"
    REDIS_BACK_SAME = "Redis goes back to an earlier state in the same history"
    FLUSH = "FLUSHALL"
    LOSS = "requests and answers get lost"
    LATE = "requests are carried out long after their time-out, and twice"
    STRAY = "one call of a process is carried out long after its time-out"
    PROJECTOR_KILL = "a projector of rooms is killed, and started again"
    PROJECTOR_STOP = "a projector is stopped"
    PROJECTOR_STUTTER = "a projector is stopped for longer than its lease, again and again"
    PROJECTOR_CUT = "a projector is cut from Redis"
    PROJECTOR_LOSS = "requests and answers of a projector get lost"
    PROJECTOR_LATE = "requests of a projector are carried out long after their time-out, and twice"
    REBUILD = "an operator has all rooms rebuilt"


ROOM_FAULTS = tuple(FaultKind)[tuple(FaultKind).index(FaultKind.PROJECTOR_KILL) :]
"""The faults of plans with rooms only; no node notices them."""


@dataclass(frozen=True)
class SimulatedFault:
    at: float  # true seconds
    kind: FaultKind  # what
    seconds: float  # how long
    # whose; the number of a place, taken by one process after another. Redis' faults have none.
    node: int = 0
    # of REDIS_BACK, how many seconds it goes back; of losses and late calls a probability; of REDIS_SLOW the
    # longest delay one way in seconds
    amount: float = 0.0


@dataclass(frozen=True)
class PlannedBan:
    """A ban that an operator makes and perhaps lifts, each as soon as Redis answers."""

    at: float  # true seconds
    uid: str
    device: str | None  # None: all devices
    ends_at: float | None  # true seconds; None: never
    lifted_at: float | None  # true seconds; None: never

    def forbids(self, uid: str, device: str) -> bool:
        return self.uid == uid and self.device in (None, device)


@dataclass(frozen=True)
class SimulationPlan:
    """Everything that is decided in advance."""

    seed: int  # what the plan was drawn from, and everything else is
    settings: Settings  # of every node
    nodes: int  # places at first
    rates: tuple[float, ...]  # of the clocks of each place's machine
    devices: tuple[DevicePlan, ...]  # who connects
    faults: tuple[SimulatedFault, ...]  # in order
    heal_at: float  # true seconds from which nothing goes wrong any more
    end_at: float  # true seconds of the final comparison
    bans: tuple[PlannedBan, ...] = ()  # in order
    max_changes: int = 0  # of each node, that may wait for Redis; 0: as many as usual
    projectors: int = 0  # of rooms; 0: there are no rooms
