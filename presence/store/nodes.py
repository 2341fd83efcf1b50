"""The table of leases as readers see it: to be shown, never a reason to act.

Whether a lease has ended is told by the clock of the Redis that keeps it. The nodes themselves go by their
own clocks and the counters, see `presence.cluster.membership`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from presence.store.keys import Keys
from presence.store.script_arguments import read_lease_row
from presence.store.shard_clients import ShardClients

NodeStatus = Literal["alive", "left", "silent", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, and what it told of itself when it renewed its lease last; None where it told nothing.

    Its status is ``alive``; ``left``: it has drained and ended, and those of its users who do not return go
    offline; ``silent``: its lease has ended; or ``dead``: it has its death certificate, its users go offline.
    """

    node: str
    status: NodeStatus
    lease_left_s: float | None  # until its lease ends, or, below 0, since; None: it never had one
    sweeper: str | None  # of a dead node, the node that ends its users' sessions
    readiness: str | None = None  # "ready" if it takes clients; else why not
    address: str | None = None  # where it listens
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    started_ms: int | None = None
    sessions: int | None = None
    connections: int | None = None
    outbox: int | None = None  # changes that wait for Redis
    left_ms: int | None = None  # Unix milliseconds at which it has drained and ended
    settings: str | None = None  # those that nodes should have in common, see `Settings.shared`


_STATS_FIELDS: Final = {
    field.name: str if field.type == str | None else int for field in fields(NodeState)[4:]
}


def read_nodes(clients: ShardClients, keys: Keys) -> list[NodeState]:
    """Return all nodes of the table, by id; a swept node is none of them."""
    nodes, leases, stats, _tombs = keys.lease_keys
    with clients.at(nodes).pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.zrange(nodes, 0, -1, withscores=True)
        pipe.hgetall(leases)
        pipe.hgetall(stats)
        clock, ends, rows, stats_fields = pipe.execute()
    now_ms = _ms(clock)
    left_s = {name: round((end_ms - now_ms) / 1000, 3) for name, end_ms in ends}
    return [
        _state(_text(name), _text(row), left_s.get(name), stats_fields.get(name, b""))
        for name, row in sorted(rows.items())
    ]


def ended_leases(clients: ShardClients, keys: Keys, nodes: Iterable[str]) -> set[str]:
    """Return those of `nodes` whose lease has ended, or that have none; asks nothing about nobody."""
    names = sorted(set(nodes))
    if not names:
        return set()
    with clients.at(keys.nodes).pipeline(transaction=True) as pipe:
        pipe.time()
        pipe.zmscore(keys.nodes, names)
        clock, ends = pipe.execute()
    now_ms = _ms(clock)
    return {name for name, end_ms in zip(names, ends, strict=True) if end_ms is None or end_ms <= now_ms}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _ms(clock: tuple[int, int]) -> float:
    seconds, microseconds = clock
    return seconds * 1000 + microseconds / 1000


def _state(node: str, text: str, left_s: float | None, stats: bytes) -> NodeState:
    row = read_lease_row(text, 0)
    stats_fields = _read_stats(stats)
    status: NodeStatus = "alive" if left_s is not None and left_s > 0 else "silent"
    if "left_ms" in stats_fields:
        status = "left"  # also while it is swept
    elif row.sweeper:
        status = "dead"
    return NodeState(
        node=node, status=status, lease_left_s=left_s, sweeper=row.sweeper or None, **stats_fields
    )


def _read_stats(stats: bytes) -> dict[str, Any]:
    """Return what is of the kind that it should be: another version may tell other things."""
    try:
        values = json.loads(stats)
    except (ValueError, RecursionError):
        return {}
    values = values if isinstance(values, dict) else {}
    return {name: values[name] for name, kind in _STATS_FIELDS.items() if isinstance(values.get(name), kind)}
