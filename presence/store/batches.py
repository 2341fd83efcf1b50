"""What a node sends to a shard and what it hears back; no redis in here.

The rules that an answer follows stand in the scripts beside this file (`scripts/*.lua`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from presence.changes import Change
from presence.outbox import Gap

NO_ENTRY_ID = "0-0"


class StoreUnavailable(Exception):
    """Redis cannot be reached or cannot answer now: the same call may be made again later."""


class StoreError(Exception):
    """Redis answered with an error that waiting may not cure; nothing was applied."""


class StoreMismatch(StoreError):
    """The data in Redis has another version or another number of shards than this node is set to."""


class Status(Enum):
    """How a script answered; all but OK are refusals that changed nothing."""

    OK = "ok"
    UNKNOWN = "unknown"  # Redis has no such counter or generation
    GAP = "gap"  # a batch number is missing
    FENCED = "fenced"  # the node was declared dead
    HISTORY = "history"  # another replication history than the generation was opened in


class Item(NamedTuple):
    """A change on its way.

    Attributes:
        change: what happened.
        restores: of an end, whether the script tells the whole period when Redis knows nothing of the user.
        snapshot: whether it says how a session is, not what happened to it; it never was in the outbox.
    """

    change: Change
    restores: bool = False
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Counter:
    """A batch number: `n` counts from 1 in each generation of each node; 0 is before the first."""

    node: str
    generation: int
    n: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What only the first batch of a generation carries.

    Attributes:
        before: the node id of the generation before; its counter comes back as `Opened.previous`.
        floor: the highest entry id that the node has seen in this shard.
        gap: what was skipped, if anything.
    """

    before: str
    floor: str = NO_ENTRY_ID
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """One numbered batch for one shard, frozen once it was sent.

    Attributes:
        shard: the shard.
        counter: whose and which batch.
        items: in order.
        now: monotonic seconds at this sending, from which ages are reckoned.
        replication_id: the history in which the generation was opened; "" in an opening.
        opening: makes this the batch that opens the generation.
    """

    shard: int
    counter: Counter
    items: tuple[Item, ...]
    now: float
    replication_id: str = ""
    opening: Opening | None = None


@dataclass(frozen=True, slots=True)
class Retirement:
    """One call of several that end what older generations of a node own in a shard.

    Attributes:
        shard: the shard.
        counter: the node and its generation; the number is not looked at.
        replication_id: as in `Batch`.
        cursor: "0" first, then what the answer gave.
        latest_ms: Unix milliseconds by which these sessions were last seen at the latest; 0: not known.
    """

    shard: int
    counter: Counter
    replication_id: str
    cursor: str
    latest_ms: int


Step = Batch | Retirement


class Superseded(NamedTuple):
    """A session that another node's session of the same (uid, device) goes before: say goodbye 300."""

    uid: str
    device: str
    session: str


class Displaced(NamedTuple):
    """A session whose place a login on node `by` took; the goodbye may have to allow a return."""

    uid: str
    device: str
    session: str
    by: str
    return_allowed: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening batch learns.

    Attributes:
        previous: the counter of `Opening.before` as it stood until then; zeros if Redis had none.
        superseded: the answer that `previous` got.
        others: the other nodes that may be at work in the shard.
    """

    previous: Counter
    superseded: tuple[Superseded, ...]
    others: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a step.

    Attributes:
        status: OK or the refusal.
        replication_id: Redis' history now.
        generation: of a refusal, the generation that Redis has; 0 if none.
        last_id: highest entry id written; "" if none was.
        superseded: see `Superseded`.
        opened: of an opening batch.
        cursor: of a retirement, where to go on; "0": done.
    """

    status: Status
    replication_id: str
    generation: int = 0
    last_id: str = ""
    superseded: tuple[Superseded, ...] = ()
    opened: Opened | None = None
    cursor: str = "0"


@dataclass(frozen=True, slots=True)
class Probe:
    """How a shard stands to a node: see `scripts/probe.lua`."""

    shard: int
    replication_id: str
    fenced: bool
    counter: Counter
    last_id: str
    others: frozenset[str]
    inbox_n: int
    inbox: tuple[Displaced, ...] = field(default=())


class Store(Protocol):
    """Redis as the relay sees it: plain calls that may block, made from one thread at a time.

    Every method raises `StoreUnavailable` when Redis cannot be reached, and `StoreError` for an answer that
    waiting may not cure. After either, and after `close`, the next call opens a new connection.
    """

    def check_meta(self) -> None:
        """Compare version and shards with what Redis has, or write them; raises `StoreMismatch`."""

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform each step atomically, at most once per number; answers in order.

        An exception among the answers stands for a step that Redis refused to run; the others hold. When the
        call as a whole raises, any of the steps may have been performed.
        """

    def probe(self, node: str, inbox_read: Sequence[int]) -> list[Probe]:
        """Ask every shard, in order; `inbox_read` has the number read so far of each shard's inbox."""

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
