"""What a node sends to a shard; no redis in here. What it hears back is in `replies`."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from presence.core.changes import Change, Profile, SessionName
from presence.outbox.queue import SkippedChanges

NO_ENTRY_ID = "0-0"


class Item(NamedTuple):
    """A change on its way."""

    change: Change
    restores: bool = False  # of an end: the script tells the whole period if Redis knows nothing of the user
    snapshot: bool = False  # says how a session is, not what happened to it; it never was in the outbox


@dataclass(frozen=True, slots=True)
class Counter:
    """A batch number: `n` counts from 1 in each generation of each node; 0 is before the first."""

    node: str
    generation: int
    n: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What only the first batch of a generation carries."""

    before: str  # the node id of the generation before; its counter comes back as `Opened.previous`
    floor: str = NO_ENTRY_ID  # the highest entry id that the node has seen in this shard
    gap: SkippedChanges | None = None  # what was skipped


@dataclass(frozen=True, slots=True)
class _Step:
    """What a node asks of a shard in one atomic call."""

    shard: int
    counter: Counter  # the node and its generation; in a `Batch` its number, too
    replication_id: str  # the history in which the generation was opened; "" in an opening


@dataclass(frozen=True, slots=True)
class Batch(_Step):
    """One numbered batch for one shard, frozen once it was sent."""

    script: ClassVar = "apply"
    items: tuple[Item, ...]
    now: float  # monotonic seconds at this sending, from which ages are reckoned
    opening: Opening | None = None  # makes this the batch that opens the generation
    complete: bool = (
        False  # with it all live sessions of the node are registered or marked in this generation
    )
    settled: bool = False  # with it no login is held back any more
    sent_ms: int = 0  # the shard's clock has surely come so far at this sending; 0: not known


@dataclass(frozen=True, slots=True)
class Retirement(_Step):
    """One call of several that end what older generations of a node own in a shard."""

    script: ClassVar = "retire"
    cursor: str  # "0" first, then what the answer gave
    latest_ms: int  # when these sessions were last seen at the latest; 0: not known


@dataclass(frozen=True, slots=True)
class Fencing(_Step):
    """Fences another node in a shard: from this id nothing is to be taken any more."""

    script: ClassVar = "fence"
    other: str


@dataclass(frozen=True, slots=True)
class Sweep(_Step):
    """One call of several that end what a fenced node owns in a shard."""

    script: ClassVar = "sweep"
    other: str
    cursor: str  # "0" first, then what the answer gave
    waited_ms: int  # for how long the caller has seen the fence; sessions with a longer time-out are left
    latest_ms: int  # of its last renewal; 0: not known


@dataclass(frozen=True, slots=True)
class Compare(_Step):
    """Compares some sessions with the records, and shows some of what the node owns."""

    script: ClassVar = "compare"
    cursor: str  # "0" first, then what the answer gave
    fields: int  # how many of those that it owns, roughly
    sessions: tuple[SessionName, ...]  # which the node has
    shown: tuple[Profile, ...]  # how each of them shows itself


Step = Batch | Retirement | Fencing | Sweep | Compare
