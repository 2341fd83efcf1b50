"""What a node hears back from a shard; no redis in here.

The rules that an answer follows stand in the scripts beside this file (`scripts/*.lua`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from presence.core.changes import SessionName
from presence.outbox.event_counts import EventCount
from presence.outbox.steps import Counter


class ReplyStatus(Enum):
    """How a script answered; all but OK are refusals that changed nothing."""

    OK = "ok"
    UNKNOWN = "unknown"  # Redis has no such counter or generation
    GAP = "gap"  # a batch number is missing
    FENCED = "fenced"  # nothing is taken from this node id any more
    UNFENCED = "unfenced"  # of a sweep: the fence is not there
    HISTORY = "history"  # another replication history than the generation was opened in


class Superseded(NamedTuple):
    """A session that another node's session of the same (uid, device) goes before."""

    uid: str
    device: str
    session: str
    return_allowed: bool = False  # it is not sure which login was later, so the goodbye must not be for good


class NodeNoticeKind(Enum):
    """What a node is told about one of its sessions."""

    DISPLACED = "displaced"  # a login elsewhere took its place; Redis knows
    KICKED = "kicked"  # an operator ends it
    LIMITED = "limited"  # its user has more sessions than allowed


class NodeNotice(NamedTuple):
    """What a node is told about one of its sessions, by its inbox or its control channel."""

    kind: NodeNoticeKind
    uid: str
    device: str
    session: str
    by: str = ""  # the node whose login took its place, or who asked for a kick, as they say
    return_allowed: bool = False  # the goodbye has to allow a return


class Question(NamedTuple):
    """What somebody asks a node over its control channel: what it knows of a user."""

    uid: str
    token: str  # drawn by the asker; it names the key where he looks for answers, and nothing else


class Erasure(NamedTuple):
    """Somebody had Redis forget users."""

    by: str  # who, as they say
    users: int
    uids: tuple[str, ...]  # the first of them


class PeerTrace(NamedTuple):
    """What another node has left in a shard."""

    generation: int  # the highest it opened; 0 if none
    complete: bool  # whether all its live sessions are registered under that generation
    fenced: bool  # whether nothing is taken from it any more
    history: str = ""  # the replication id under which it registered them all; "" if it did not


PeerTraces = Mapping[str, PeerTrace]
"""Node id to trace."""


class CounterSnapshot(NamedTuple):
    """How a counter stood, and the answer that its last batch got."""

    counter: Counter
    superseded: tuple[Superseded, ...] = ()
    event_counts: tuple[EventCount, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """What an opening batch learns.

    Attributes:
        trail: how the counters of the generations before stood until then, the latest first: of
            `Opening.before` and, if openings were applied whose answers got lost, of those before it.
        others: the other nodes' traces in the shard.
    """

    batch_history: tuple[CounterSnapshot, ...]
    others: PeerTraces


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a step."""

    status: ReplyStatus
    replication_id: str  # Redis' history now
    generation: int = 0  # of a refusal, the generation that Redis has; 0 if none
    last_id: str = ""  # highest entry id written; "" if none was
    superseded: tuple[Superseded, ...] = ()
    event_counts: tuple[
        EventCount, ...
    ] = ()  # the events that it has written, or had when it was performed first
    opened: Opened | None = None  # of an opening batch
    cursor: str = "0"  # of a retirement, a sweep or a comparison, where to go on; "0": at the end
    ended: int = 0  # of these, sessions ended
    wait_ms: int = 0  # of a sweep, until the next session that was left is due; 0: none was left
    done: bool = False  # of a sweep, whether the node owns nothing in the shard any more
    owned: tuple[SessionName, ...] = ()  # of a comparison, sessions that the node owns
    missing: tuple[int, ...] = ()  # of a comparison, the numbers of sessions asked about that no record names


@dataclass(frozen=True, slots=True)
class Probe:
    """How a shard stands to a node: see `scripts/probe.lua`."""

    shard: int
    replication_id: str
    fenced: bool
    counter: Counter
    last_id: str
    others: PeerTraces
    inbox_n: int
    inbox: tuple[NodeNotice, ...] = field(default=())
    now_ms: int = 0

    def has_missed(self, read: int) -> bool:
        """Whether some of the news after number `read` are in the inbox no more: it holds a few only."""
        return self.inbox_n - read > len(self.inbox)
