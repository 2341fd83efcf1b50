"""Steps that a node sends to a shard; imports no Redis client. The answers are in `replies`.

Tests: `tests/store/test_apply.py`, `tests/store/test_sweep.py`.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from presence.core.changes import Change, SessionName
from presence.core.profiles import Profile
from presence.outbox.overflow import SkippedChanges

NO_ENTRY_ID = "0-0"
FENCE_TTL_S: Final = (
    86_400  # of a fence after the sweep: longer than any pause of a process or delay of a packet
)


class Item(NamedTuple):
    """A change in a batch."""

    change: Change
    restores: bool = False  # of an end: the script writes the whole period if Redis has no record of the user


@dataclass(frozen=True, slots=True)
class Counter:
    """A batch number: `n` counts from 1 in each generation of each node; 0 is before the first."""

    node: str
    generation: int
    n: int


@dataclass(frozen=True, slots=True)
class Opening:
    """Fields that only the first batch of a generation has."""

    before: str  # the node id of the generation before, whose counter is returned in `Opened.batch_history`
    floor: str = NO_ENTRY_ID  # the highest entry id that the node has seen in this shard
    skipped: SkippedChanges | None = None  # changes that the stream reports as a gap


@dataclass(frozen=True, slots=True)
class _Step:
    """An atomic call of a script on a shard."""

    shard: int
    counter: Counter  # the node and its generation; in a `Batch` also its number
    replication_id: str  # that under which the generation was opened; "" in an opening


@dataclass(frozen=True, slots=True)
class Batch(_Step):
    """One numbered batch for one shard, frozen once it was sent."""

    script: ClassVar = "apply"
    items: tuple[Item, ...]
    now: float  # monotonic seconds at this sending, from which ages are reckoned
    opening: Opening | None = None  # makes this the batch that opens the generation
    # whether all live sessions of the node are registered, or announced as pending logins, with this batch
    complete: bool = False
    sent_ms: int = 0  # lower bound of the shard's clock at this sending; 0: not known


@dataclass(frozen=True, slots=True)
class Retirement(_Step):
    """One of several calls that end sessions owned by older generations of a node."""

    script: ClassVar = "retire"
    cursor: str  # "0" first, then the last answer's
    latest_ms: int  # upper bound of when these sessions were last seen; 0: not known


@dataclass(frozen=True, slots=True)
class Fencing(_Step):
    """Fences another node in a shard: all further steps of its id are refused."""

    script: ClassVar = "fence"
    other: str


@dataclass(frozen=True, slots=True)
class Sweep(_Step):
    """One of several calls that end the sessions of a fenced node in a shard."""

    script: ClassVar = "sweep"
    other: str
    cursor: str  # "0" first, then the last answer's
    waited_ms: int  # time since the caller saw the fence; sessions with a longer time-out are left
    latest_ms: int  # of its last renewal; 0: not known


@dataclass(frozen=True, slots=True)
class Compare(_Step):
    """Compares some sessions with the records, and returns some of those that the node owns on record."""

    script: ClassVar = "compare"
    cursor: str  # "0" first, then the last answer's
    fields: int  # approximate number of owned sessions to return
    sessions: tuple[SessionName, ...]  # sessions of the node
    shown: tuple[Profile, ...]  # their profiles


@dataclass(frozen=True, slots=True)
class Reindex(_Step):
    """One of several calls that restore the index of sessions by node, which sweeps follow, from records."""

    script: ClassVar = "reindex"
    cursor: str  # "0" first, then the last answer's
    users: int  # approximate number of users to read


Step = Batch | Retirement | Fencing | Sweep | Compare | Reindex
