"""What a node hears back from a shard; no redis in here.

The rules that an answer follows stand in the scripts beside this file (`scripts/*.lua`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from presence.changes import SessionName
from presence.store.batches import Counter
from presence.transitions import Told


class Status(Enum):
    """How a script answered; all but OK are refusals that changed nothing."""

    OK = "ok"
    UNKNOWN = "unknown"  # Redis has no such counter or generation
    GAP = "gap"  # a batch number is missing
    FENCED = "fenced"  # nothing is taken from this node id any more
    UNFENCED = "unfenced"  # of a sweep: the fence is not there
    HISTORY = "history"  # another replication history than the generation was opened in


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
        by: the node whose login took its place, or who asked for a kick; "" otherwise. Others wrote it.
        return_allowed: whether the goodbye has to allow a return.
    """

    kind: NewsKind
    uid: str
    device: str
    session: str
    by: str = ""
    return_allowed: bool = False


class Question(NamedTuple):
    """What somebody asks a node over its control channel: what it knows of a user.

    Attributes:
        uid: the user.
        token: drawn by the asker; it names the key where he looks for answers, and nothing else.
    """

    uid: str
    token: str


class Erasure(NamedTuple):
    """Somebody had Redis forget users.

    Attributes:
        by: who, as they say.
        users: how many.
        uids: the first of them.
    """

    by: str
    users: int
    uids: tuple[str, ...]


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
    now_ms: int = 0

    def has_missed(self, read: int) -> bool:
        """Whether some of the news after number `read` are in the inbox no more: it holds a few only."""
        return self.inbox_n - read > len(self.inbox)
