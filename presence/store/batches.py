"""What a node sends to a shard and what it hears back; no redis in here.

The rules that an answer follows stand in the scripts beside this file (`scripts/*.lua`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from presence.changes import Change, SessionName
from presence.outbox import Gap
from presence.transitions import Told

NO_ENTRY_ID = "0-0"


class StoreUnavailable(Exception):
    """Redis cannot be reached or cannot answer now: the same call may be made again later."""


class StoreInterrupted(StoreUnavailable):
    """The connection broke after the call was sent: it may have been performed, or may be yet."""


class StoreError(Exception):
    """Redis answered with an error that waiting may not cure; nothing was applied."""


class StoreMismatch(StoreError):
    """The data in Redis has another version or another number of shards than this node is set to."""


class Status(Enum):
    """How a script answered; all but OK are refusals that changed nothing."""

    OK = "ok"
    UNKNOWN = "unknown"  # Redis has no such counter or generation
    GAP = "gap"  # a batch number is missing
    FENCED = "fenced"  # nothing is taken from this node id any more
    UNFENCED = "unfenced"  # of a sweep: the fence is not there
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
        complete: whether with it all live sessions of the node are registered or marked in this generation.
        settled: whether with it no login is held back any more.
    """

    shard: int
    counter: Counter
    items: tuple[Item, ...]
    now: float
    replication_id: str = ""
    opening: Opening | None = None
    complete: bool = False
    settled: bool = False


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


@dataclass(frozen=True, slots=True)
class Fencing:
    """Fences another node in a shard.

    Attributes:
        shard: the shard.
        counter, replication_id: as in `Retirement`.
        other: the id from which nothing is to be taken any more.
    """

    shard: int
    counter: Counter
    replication_id: str
    other: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """One call of several that end what a fenced node owns in a shard.

    Attributes:
        shard: the shard.
        counter, replication_id: as in `Retirement`.
        other: the fenced node.
        cursor: "0" first, then what the answer gave.
        waited_ms: for how long the caller has seen the fence; sessions with a longer time-out are left.
        latest_ms: Unix milliseconds of its last renewal; 0: not known.
    """

    shard: int
    counter: Counter
    replication_id: str
    other: str
    cursor: str
    waited_ms: int
    latest_ms: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Compares some sessions with the records, and shows some of what the node owns.

    Attributes:
        shard: the shard.
        counter, replication_id: as in `Retirement`.
        cursor: "0" first, then what the answer gave.
        fields: how many of those that it owns, roughly.
        sessions: which the node has.
    """

    shard: int
    counter: Counter
    replication_id: str
    cursor: str
    fields: int
    sessions: tuple[SessionName, ...]


Step = Batch | Retirement | Fencing | Sweep | Compare


class Superseded(NamedTuple):
    """A session that another node's session of the same (uid, device) goes before.

    `return_allowed`: it is not sure which login was the later one, so the goodbye must not be for good.
    """

    uid: str
    device: str
    session: str
    return_allowed: bool = False


class NewsKind(Enum):
    """What a node is told about one of its sessions."""

    DISPLACED = "displaced"  # a login elsewhere took its place; Redis knows
    KICKED = "kicked"  # an operator ends it
    LIMITED = "limited"  # its user has more sessions than allowed


class News(NamedTuple):
    """What a node is told about one of its sessions, by its inbox or its control channel.

    Attributes:
        kind: what.
        uid, device, session: which.
        by: the node whose login took its place; "" otherwise.
        return_allowed: whether the goodbye has to allow a return.
    """

    kind: NewsKind
    uid: str
    device: str
    session: str
    by: str = ""
    return_allowed: bool = False


class Trace(NamedTuple):
    """What another node has left in a shard.

    Attributes:
        generation: the highest it opened; 0 if none.
        complete: whether all its live sessions are registered under that generation.
        fenced: whether nothing is taken from it any more.
        history: the replication id under which it registered them all; "" if it did not.
    """

    generation: int
    complete: bool
    fenced: bool
    history: str = ""


Traces = Mapping[str, Trace]
"""Node id to trace."""


class Stand(NamedTuple):
    """How a counter stood, and the answer that its last batch got."""

    counter: Counter
    superseded: tuple[Superseded, ...] = ()
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening batch learns.

    Attributes:
        trail: how the counters of the generations before stood until then, the latest first: of
            `Opening.before` and, if openings were applied whose answers got lost, of those before it.
        others: the other nodes' traces in the shard.
    """

    trail: tuple[Stand, ...]
    others: Traces


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a step.

    Attributes:
        status: OK or the refusal.
        replication_id: Redis' history now.
        generation: of a refusal, the generation that Redis has; 0 if none.
        last_id: highest entry id written; "" if none was.
        superseded: see `Superseded`.
        told: the events that it has written, or had when it was performed for the first time.
        opened: of an opening batch.
        cursor: of a retirement, a sweep or a comparison, where to go on; "0": at the end.
        ended: of these, sessions ended.
        wait_ms: of a sweep, until the next session that was left is due; 0: none was left.
        done: of a sweep, whether the node owns nothing in the shard any more.
        owned: of a comparison, sessions that the node owns.
        missing: of a comparison, the numbers of the sessions asked about that no record names.
    """

    status: Status
    replication_id: str
    generation: int = 0
    last_id: str = ""
    superseded: tuple[Superseded, ...] = ()
    told: tuple[Told, ...] = ()
    opened: Opened | None = None
    cursor: str = "0"
    ended: int = 0
    wait_ms: int = 0
    done: bool = False
    owned: tuple[SessionName, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """How a shard stands to a node: see `scripts/probe.lua`."""

    shard: int
    replication_id: str
    fenced: bool
    counter: Counter
    last_id: str
    others: Traces
    inbox_n: int
    inbox: tuple[News, ...] = field(default=())

    def has_missed(self, read: int) -> bool:
        """Whether some of the news after number `read` are in the inbox no more: it holds a few only."""
        return self.inbox_n - read > len(self.inbox)


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A node in the table of leases.

    Attributes:
        text: the row as Redis has it; whoever changes it names it.
        counter: as the node has renewed last.
        sweeper: the node that its death certificate names; "" without one.
        sweeper_n: advanced by the sweeper while it is at work.
        lease_end_ms: by Redis' clock; 0: not known.
    """

    text: str
    counter: str
    sweeper: str = ""
    sweeper_n: int = 0
    lease_end_ms: int = 0

    def claimed_by(self, sweeper: str) -> "LeaseRow":
        """Return the row with a death certificate that names `sweeper`; see lease.lua for its text."""
        n = self.sweeper_n + 1
        return LeaseRow(f"{self.counter} {sweeper} {n}", self.counter, sweeper, n, self.lease_end_ms)


class LeaseTable(Protocol):
    """The leases of all nodes in Redis: calls as those of `Store`, with the same errors."""

    def renew(
        self, node: str, counter: int, stats: str, sweeping: Sequence[str]
    ) -> Mapping[str, LeaseRow] | None:
        """Renew a lease and advance the certificates of `sweeping`; return all rows by node.

        None: this id was declared dead, and nothing was changed.
        """

    def claim(self, node: str, seen: str, wanted: str) -> bool:
        """Change the text of a row from `seen` to `wanted`; False: it is another by now.

        `seen` is "" where there is no row. `wanted` is "" to bury a node that was swept.
        """

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""


class Store(Protocol):
    """Redis as the relay sees it: plain calls that may block, made from one thread at a time.

    What fails is a `StoreUnavailable` when Redis cannot be reached or will answer later, and a `StoreError`
    for an answer that waiting may not cure. After either, and after `close`, the next call opens a new
    connection. Shards may be on several servers, so that one fails and another does not.
    """

    def check_meta(self) -> None:
        """Compare version and shards with what Redis has, or write them.

        Raises:
            StoreMismatch: they differ.
            StoreUnavailable, StoreError: see above.
        """

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        """Perform each step atomically, at most once per number; answers in order.

        A failure among the answers stands for a step that was not performed or, if the connection broke, may
        have been.
        """

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        """Ask shards how they stand to a node; `inbox_read` has the number read so far of each inbox."""

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""
