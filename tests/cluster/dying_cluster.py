"""A node whose relay, lease table and store are simulated, beside a node that has died."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import trio

from presence.cluster.lease_renewal import LeaseRenewal
from presence.cluster.lease_table import LeaseRow, LeaseTable
from presence.common.errors import StoreError
from presence.outbox.event_counts import EventCount, Transitions
from presence.outbox.relay import Relay
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_peers import ShardPeers
from presence.outbox.steps import Counter, Fencing, Reindex, Step, Sweep
from presence.outbox.store import Store
from presence.protocol import Code
from presence.store.script_arguments import read_lease_row
from tests.support.waiting import InlineCallsRuntime

LEASE_S, IDLE_S = 2.0, 3.0


DEAD = "dead"


SESSIONS, ENDED = 7, 2  # of the dead node, and of those in each shard


class Claim(NamedTuple):
    """A change of a row."""

    kind: str
    node: str


ME = Counter("me", 1, 1)


KINDS = {Fencing: "fence", Sweep: "sweep"}


@dataclass
class Writer:
    """The part of a shard writer that the cluster uses."""

    shard: int
    settled: bool = True
    rollbacks: int = 0
    gate: Any = field(default_factory=lambda: SimpleNamespace(peers=ShardPeers(lambda _node: True)))

    def is_settled(self, _now: float) -> bool:
        return self.settled

    def fence_step(self, other: str) -> Fencing:
        return Fencing(self.shard, ME, "r", other)

    def sweep_step(self, other: str, cursor: str, waited_ms: int, latest_ms: int) -> Sweep:
        return Sweep(self.shard, ME, "r", other, cursor, waited_ms, latest_ms)

    def reindex_step(self, cursor: str, users: int) -> Reindex:
        return Reindex(self.shard, ME, "r", cursor, users)


@dataclass
class Redis:
    """Relay, lease table and store in one: a node has died, and every call succeeds."""

    writers: list[Writer] = field(default_factory=lambda: [Writer(0), Writer(1)])
    rows: dict[str, LeaseRow] = field(default_factory=lambda: {DEAD: LeaseRow("7", "7")})
    calls: list[Claim | Step] = field(default_factory=list)
    walk: list[Reindex] = field(default_factory=list)
    unreadable: tuple[str, ...] = ()
    refusing: set[int] = field(default_factory=set)  # shards that refuse the walk
    node: str = "me"
    former_ids: set[str] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    reports: list[str] = field(default_factory=list)
    transitions: Transitions = field(default_factory=Transitions)

    def is_reachable(self, writer: Writer) -> bool:
        return writer.shard not in self.away

    def renew(self, node: str, counter: int, report: str, *_: object) -> Mapping[str, LeaseRow]:
        self.reports.append(report)
        return {**self.rows, node: LeaseRow(str(counter), str(counter))}

    def claim(self, node: str, _seen: str, wanted: str) -> bool:
        self.calls.append(Claim("claim" if wanted else "bury", node))
        if wanted:
            self.rows[node] = read_lease_row(wanted, 0)
        else:
            del self.rows[node]
        return True

    def remove(self, node: str, seen: str) -> str:
        self.claim(node, seen, "")
        return json.dumps({"sessions": SESSIONS})

    def apply(self, steps: Sequence[Step]) -> list[Reply]:
        if walk := [each for each in steps if isinstance(each, Reindex)]:
            self.walk += walk
            if walk[0].shard in self.refusing:
                raise StoreError("WRONGTYPE")
            return [Reply(ReplyStatus.OK, "r", damaged=self.unreadable)]
        self.calls += steps
        counts = (EventCount("offline", Code.NODE_DOWN, ENDED),)
        return [
            Reply(ReplyStatus.OK, "r", cursor="0", done=True, ended=ENDED, event_counts=counts) for _ in steps
        ]

    @property
    def kinds(self) -> list[str]:
        return [each.kind if isinstance(each, Claim) else KINDS[type(each)] for each in self.calls]


def made(redis: Redis, *, healthy: bool = True) -> LeaseRenewal:
    return LeaseRenewal(
        cast(Relay, redis),
        cast(LeaseTable, redis),
        cast(Store, redis),
        lease_s=LEASE_S,
        idle_timeout_s=IDLE_S,
        is_healthy=lambda: healthy,
        describe=dict,
        clock=trio.current_time,
        runtime=InlineCallsRuntime(),
    )


async def live(redis: Redis, seconds: float) -> None:
    """Run a node for this time."""
    with trio.move_on_after(seconds):
        await made(redis).run()
