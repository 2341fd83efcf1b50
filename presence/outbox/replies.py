"""Answers of a shard to a node; imports no Redis client.

The scripts that give them are in `presence/store/scripts/*.lua`.

Tests: `tests/store/test_apply.py`, `tests/store/test_sweep.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from presence.core.changes import SessionName
from presence.core.profiles import Privacy
from presence.outbox.event_counts import EventCount
from presence.outbox.steps import Counter


class ReplyStatus(Enum):
    """Status of a script's answer; all but OK are refusals that changed nothing."""

    OK = "ok"
    UNKNOWN = "unknown"  # Redis has no such counter or generation
    MISSING_BATCH = "gap"  # a batch number is missing
    FENCED = "fenced"  # this node id is fenced: all its steps are refused
    UNFENCED = "unfenced"  # of a sweep: the other node is not fenced
    HEAVY = "heavy"  # of a batch: the records of its users are too large for one call, see `Reply.fitting`
    OTHER_REPLICATION = "history"  # another replication id than that under which the generation was opened


class Superseded(NamedTuple):
    """A session that lost to another node's session of the same (uid, device)."""

    uid: str
    device: str
    session: str
    return_allowed: bool = False  # the order of the logins is uncertain: the client may reconnect


class NodeNoticeKind(Enum):
    DISPLACED = "displaced"  # superseded by a login on another node; Redis knows
    KICKED = "kicked"  # an operator ends it
    LIMITED = "limited"  # its user has more sessions than allowed
    PRIVACY = "privacy"  # its user hides something else than before


class NodeNotice(NamedTuple):
    """A notice about one of a node's sessions, from its inbox or its control channel."""

    kind: NodeNoticeKind
    uid: str
    device: str
    session: str
    by: str = ""  # the node whose login superseded it, or the operator's name as the kick gave it
    return_allowed: bool = False  # whether the client may reconnect
    privacy: Privacy = ""  # of `PRIVACY`: what the user hides from now on


class PeerTrace(NamedTuple):
    """The state of another node in a shard."""

    generation: int  # the highest that it has opened; 0 if none
    complete: bool  # whether all its live sessions are registered in that generation
    fenced: bool
    replication_id: str = ""  # the replication id under which it registered them all; "" if it did not


PeerTraces = Mapping[str, PeerTrace]
"""Node id to trace."""


class CounterSnapshot(NamedTuple):
    """The value of a counter, and the answer to its last batch."""

    counter: Counter
    superseded: tuple[Superseded, ...] = ()
    event_counts: tuple[EventCount, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to an opening batch.

    Attributes:
        batch_history: the last values of the counters of earlier generations, latest first: of
            `Opening.before` and, if answers of applied openings were lost, of those before it.
        peer_traces: the other nodes' states in the shard.
    """

    batch_history: tuple[CounterSnapshot, ...]
    peer_traces: PeerTraces


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a step."""

    status: ReplyStatus
    replication_id: str  # that of Redis now
    generation: int = 0  # of a refusal: the generation that Redis has; 0 if none
    fitting: int = 0  # of a heavy batch: how many of its items, from the first on, are not too many
    last_id: str = ""  # highest entry id written; "" if none
    superseded: tuple[Superseded, ...] = ()
    event_counts: tuple[EventCount, ...] = ()  # the events that the step has written, in whichever call
    opened: Opened | None = None  # of an opening batch
    cursor: str = "0"  # of all steps in several calls: where to continue; "0": at the end
    ended: int = 0  # of a retirement or sweep: sessions ended
    wait_ms: int = 0  # of a sweep: until the next session that was left is due; 0: none was left
    done: bool = False  # of a sweep: whether the node owns nothing more in the shard
    owned: tuple[SessionName, ...] = ()  # of a comparison: sessions that the node owns on record
    missing: tuple[int, ...] = ()  # of a comparison: indexes of compared sessions without a record
    uncompared: int = 0  # of a comparison: sessions, the last ones, that were too many for the call
    restored: int = 0  # of a reindexing: sessions that the index lacked
    damaged: tuple[str, ...] = ()  # of a reindexing: some users whose records are unreadable


@dataclass(frozen=True, slots=True)
class Probe:
    """A shard's state with regard to a node: see `scripts/probe.lua`."""

    shard: int
    replication_id: str
    fenced: bool
    counter: Counter
    last_id: str
    peer_traces: PeerTraces
    inbox_n: int
    inbox: tuple[NodeNotice, ...] = field(default=())
    now_ms: int = 0

    def has_missed(self, read: int) -> bool:
        """Whether notices after number `read` were dropped from the inbox, which is bounded."""
        return self.inbox_n - read > len(self.inbox)
