"""The lease table as readers see it: to be shown, never a reason to act.

Whether a lease has expired is decided by the clock of the Redis that keeps it. The nodes themselves use their
own clocks and the counters, see `presence.cluster.lease_renewal`.

Tests: `tests/cli/test_nodes.py`.
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
    """A node, with its stats from its last lease renewal; None for stats it did not report.

    Its status is ``alive``; ``left``: it has drained and ended, and users who do not return go offline;
    ``silent``: its lease has expired; or ``dead``: it was declared dead, and its users go offline.
    """

    node: str
    status: NodeStatus
    lease_left_s: float | None  # until its lease expires, negative if it has; None if it never had one
    sweeper: str | None  # of a dead node, the node that ends its sessions
    readiness: str | None = None  # "ready" if it accepts clients, otherwise the reason
    address: str | None = None  # where it listens
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    started_ms: int | None = None
    sessions: int | None = None
    connections: int | None = None
    outbox: int | None = None  # changes waiting for Redis
    left_ms: int | None = None  # Unix milliseconds of its end after a drain
    sent_away: int | None = None  # clients that `presence rebalance` has sent away, since the start
    rebalance: str | None = None  # the `presence rebalance` whose orders it obeys
    settings: str | None = None  # that all nodes should share, see `Settings.shared`

    def setting(self, name: str) -> float | None:
        """Return a number among `settings`; None if there is none of this name."""
        texts = dict(each.partition("=")[::2] for each in (self.settings or "").split())
        try:
            return float(texts[name])
        except (KeyError, ValueError):
            return None


_STATS_FIELDS: Final = {
    field.name: str if field.type == str | None else int for field in fields(NodeState)[4:]
}


def read_nodes(clients: ShardClients, keys: Keys) -> list[NodeState]:
    """Return all nodes of the table, by id, without swept ones."""
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
    """Return those of `nodes` whose lease has expired, or that have none; without nodes asks nothing."""
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
        status = "left"  # also during its sweep
    elif row.sweeper:
        status = "dead"
    return NodeState(
        node=node, status=status, lease_left_s=left_s, sweeper=row.sweeper or None, **stats_fields
    )


def _load_stats(stats: bytes) -> dict[str, Any]:
    """Return the stats of a node as it wrote them; {} if they are damaged."""
    try:
        values = json.loads(stats)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _read_stats(stats: bytes) -> dict[str, Any]:
    """Return the stats of the expected types: another version may report others."""
    values = _load_stats(stats)
    return {name: values[name] for name, kind in _STATS_FIELDS.items() if isinstance(values.get(name), kind)}
