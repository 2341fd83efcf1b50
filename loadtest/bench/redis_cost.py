"""``python -m loadtest.bench.redis_cost``: what a node, a transition and a user cost Redis, and what many
nodes need.

A node without sockets runs against a private Redis. Calls are from ``INFO commandstats``, CPU from ``INFO
cpu`` less that of an idle Redis. Keepalives cost Redis nothing; probes of each shard and transitions do.
Transitions travel together where many come within 0.2 s, and alone where few do, so both are measured.
"""

import argparse
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

from loadtest.bench.inprocess import InProcessNode
from loadtest.outcome import markdown
from loadtest.usage import redis_calls, redis_cpu_seconds
from presence import protocol
from presence.core.registry import Session
from presence.outbox.relay import PROBE_INTERVAL_S
from presence.store.client import Redis, open_client
from presence.store.embedded import embedded_redis
from presence.store.keys import Keys

SHARDS: Final = (1, 16)
REST_S: Final = 4 * PROBE_INTERVAL_S
IDLE_TIMEOUT_S: Final = 3600.0  # no session ends by silence
IDLE_S: Final = 2.0
_LOGOUT: Final = protocol.encode(protocol.logout())


@dataclass(frozen=True)
class Cost:
    """What one node costs one Redis."""

    shards: int  # of the data
    # A second at rest: scripts, all commands, those inside scripts too, CPU µs
    scripts: float
    commands: float
    rest_us: float
    # CPU µs of Redis for a transition in full batches
    online_us: float
    offline_us: float
    # The same for one that travels alone
    online_alone_us: float
    offline_alone_us: float
    # Memory for a user online: record and owner; and offline: when last seen
    user_bytes: float
    seen_bytes: float
    entry_bytes: float  # memory for a stream entry


@dataclass(frozen=True)
class CostPlan:
    """What to serve. A user comes and goes `visits` times a day, at the peak `peak` times as often."""

    users: int = 10_000_000
    nodes: int = 100
    visits: float = 10
    peak: float = 3
    entries_kept: int = 1_000_000

    @property
    def transitions_s(self) -> float:
        """Transitions per second at the peak."""
        return self.users * self.visits * 2 * self.peak / 86_400


class _Meter:
    """Redis' own statistics."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client: Any = client
        self._keys = keys
        self._idle_us_s = 0.0

    def calls(self) -> tuple[int, int]:
        """Return scripts and commands called since the server's start."""
        calls = redis_calls(self._client)
        return calls.get("cmdstat_evalsha", 0), sum(calls.values())

    def memory(self) -> tuple[int, int]:
        """Return bytes of the data without the streams, and bytes of the streams."""
        events = [self._keys.events(shard) for shard in range(self._keys.shards)]
        streams = sum(self._client.memory_usage(each, samples=0) or 0 for each in events)
        return self._client.info("memory")["used_memory_dataset"] - streams, streams

    async def idle(self, seconds: float) -> None:
        """Measure what an idle Redis uses."""
        self._idle_us_s = await self.cost_us(trio.sleep, seconds) / seconds

    async def cost_us(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> float:
        """Return CPU µs of a call, without the idle share."""
        started, before_s = time.monotonic(), redis_cpu_seconds(self._client)
        await work(*arguments)
        cpu_us = (redis_cpu_seconds(self._client) - before_s) * 1e6
        return max(0.0, cpu_us - self._idle_us_s * (time.monotonic() - started))


async def measure(url: str, keys: Keys, users: int, alone: int, rest_s: float = REST_S) -> Cost:
    """Return what a node costs a Redis without these keys.

    Args:
        users: how many come and go together.
        alone: how many come and go one by one.
        rest_s: seconds of rest to measure.
    """
    with open_client(url) as client:
        meter = _Meter(client, keys)
        await meter.idle(min(IDLE_S, rest_s))
        node = InProcessNode(url, keys, 4 * users, idle_timeout=IDLE_TIMEOUT_S)
        live: list[Session] = []
        async with _running(node):
            scripts, commands = meter.calls()
            rest_us = await meter.cost_us(trio.sleep, rest_s)
            scripts, commands = (
                after - n for after, n in zip(meter.calls(), (scripts, commands), strict=True)
            )
            online_alone = await meter.cost_us(_log_in_all, node, live, [[f"lone-{n}"] for n in range(alone)])
            offline_alone = await meter.cost_us(_log_out_all, node, [[session] for session in live])
            live.clear()
            before = meter.memory()
            online = await meter.cost_us(_log_in_all, node, live, [[f"user-{n}" for n in range(users)]])
            with_all = meter.memory()
            offline = await meter.cost_us(_log_out_all, node, [live])
            after = meter.memory()
    return Cost(
        keys.shards,
        *(scripts / rest_s, commands / rest_s, rest_us / rest_s),
        *(online / users, offline / users, online_alone / alone, offline_alone / alone),
        (with_all[0] - before[0]) / users,
        (after[0] - before[0]) / users,
        (with_all[1] - before[1]) / users,
    )


@asynccontextmanager
async def _running(node: InProcessNode) -> AsyncIterator[None]:
    await node.start()
    async with trio.open_nursery() as nursery:
        for task in (node.relay.run, node.cluster.run, node.ticker.run):
            nursery.start_soon(task)
        while not all(writer.is_idle(time.monotonic()) for writer in node.relay.writers):  # noqa: ASYNC110 - once
            await trio.sleep(0.05)  # until all that a start costs is over
        yield
        nursery.cancel_scope.cancel()


async def _log_in_all(node: InProcessNode, live: list[Session], groups: list[list[str]]) -> None:
    for uids in groups:
        live += await node.log_in(uids)


async def _log_out_all(node: InProcessNode, groups: list[list[Session]]) -> None:
    for sessions in groups:
        for session in sessions:
            node.engine.received(session, _LOGOUT)
        await node.settled()


def table(costs: list[Cost], plan: CostPlan) -> str:
    """Return the costs, and what follows from them, in Markdown."""
    shards = [f"{each.shards} shard{'s' if each.shards > 1 else ''}" for each in costs]
    measured = {
        "at rest: scripts a second": "{0.scripts:,.1f}",
        "at rest: commands a second, those in scripts too": "{0.commands:,.1f}",
        "at rest: CPU, µs a second": "{0.rest_us:,.0f}",
        "a user comes, many together: CPU µs": "{0.online_us:,.1f}",
        "a user goes, many together: CPU µs": "{0.offline_us:,.1f}",
        "a user comes alone: CPU µs": "{0.online_alone_us:,.0f}",
        "a user goes alone: CPU µs": "{0.offline_alone_us:,.0f}",
        "a user online: bytes": "{0.user_bytes:,.0f}",
        "a user offline, last seen: bytes": "{0.seen_bytes:,.0f}",
        "a stream entry: bytes": "{0.entry_bytes:,.0f}",
    }
    needs = [_needs(each, plan) for each in costs]
    assumed = (
        f"Assumed: each user comes and goes {plan.visits:g} times a day, {plan.peak:g} times as often at the "
        f"peak; streams capped at {plan.entries_kept:,} entries per shard; no client subscribes to the hints."
    )
    return "\n\n".join(
        [
            markdown(
                ["one node costs Redis", *shards],
                ([name, *(form.format(each) for each in costs)] for name, form in measured.items()),
            ),
            markdown(
                [f"{plan.users:,} users on {plan.nodes} nodes need", *shards],
                ([name, *(each[name] for each in needs)] for name in needs[0]),
            ),
            assumed,
        ]
    )


def _needs(cost: Cost, plan: CostPlan) -> dict[str, str]:
    alone_us = (cost.online_alone_us + cost.offline_alone_us) / 2
    busy = (plan.transitions_s * alone_us + plan.nodes * cost.rest_us) / 1e6
    crash_s = plan.users / plan.nodes * cost.offline_us / 1e6
    memory = plan.users * cost.user_bytes + plan.entries_kept * cost.shards * cost.entry_bytes
    return {
        "transitions a second at the peak": f"{plan.transitions_s:,.0f}",
        "scripts a second at rest": f"{plan.nodes * cost.scripts:,.0f}",
        "cores of Redis at the peak, each transition alone in its batch": f"{busy:.2f}",
        "seconds of Redis when all users of one node end in one tick": f"{crash_s:.2f}",
        "GB of memory, all online and the streams full": f"{memory / 1e9:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.redis_cost", description=__doc__)
    parser.add_argument("--users", type=int, default=50_000, help="who come and go together (default 50,000)")
    parser.add_argument("--alone", type=int, default=150, help="who come and go one by one (default 150)")
    arguments = parser.parse_args()
    costs = []
    for shards in SHARDS:
        keys = Keys("presence-bench", shards)
        with embedded_redis() as redis:
            costs.append(trio.run(measure, redis.url, keys, arguments.users, arguments.alone))
    print(table(costs, CostPlan()))


if __name__ == "__main__":
    main()
