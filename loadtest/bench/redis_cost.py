"""What a node costs Redis, and hence what many nodes need: ``python -m loadtest.bench.redis_cost``.

A node without sockets runs against a private Redis or that of ``--redis``. Counted are Redis's own figures:
calls from ``INFO commandstats``, processor time from ``INFO cpu`` less what the same Redis uses with nobody
there. Keepalives cost Redis nothing; what costs is the probe of each shard and the transitions. These travel
together where many come within 20 ms, and alone where few do, so both are measured.
"""

import argparse
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

import protocol
from loadtest.bench.inprocess import Node, redis_for
from loadtest.outcome import markdown
from presence.registry import Session
from presence.relay import PROBE_INTERVAL_S
from presence.store.client import Redis, open_client
from presence.store.keys import Keys

SHARDS: Final = (1, 16)
REST_S: Final = 4 * PROBE_INTERVAL_S
IDLE_TIMEOUT_S: Final = 3600.0  # nobody ends by himself
IDLE_S: Final = 2.0
_LOGOUT: Final = protocol.encode(protocol.logout())


@dataclass(frozen=True)
class Rest:
    """A node at rest: scripts and all commands a second, those inside scripts too, and CPU µs a second."""

    scripts: float
    commands: float
    cpu_us: float


@dataclass(frozen=True)
class Cost:
    """What one node costs one Redis.

    Attributes:
        shards: of the data.
        rest: at rest.
        online_us, offline_us: CPU µs of Redis for a transition in full batches.
        online_alone_us, offline_alone_us: the same for one that travels alone.
        user_bytes: memory for a user online: record and owner.
        entry_bytes: memory for a stream entry.
        seen_bytes: memory for a user offline: when last seen.
    """

    shards: int
    rest: Rest
    online_us: float
    offline_us: float
    online_alone_us: float
    offline_alone_us: float
    user_bytes: float
    entry_bytes: float
    seen_bytes: float


@dataclass(frozen=True)
class Plan:
    """What is to be served. A user comes and goes `visits` times a day, at the peak `peak` times as often."""

    users: int = 10_000_000
    nodes: int = 100
    visits: float = 10
    peak: float = 3
    entries_kept: int = 1_000_000

    @property
    def transitions_s(self) -> float:
        """Transitions a second at the peak."""
        return self.users * self.visits * 2 * self.peak / 86_400


class _Meter:
    """Redis's own account of its work."""

    def __init__(self, client: Redis, keys: Keys) -> None:
        self._client, self._keys = client, keys
        self.idle_us_s = 0.0

    def cpu_us(self) -> float:
        info: Any = self._client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6

    def calls(self) -> tuple[int, int]:
        """Return scripts and commands called since the server's start."""
        stats: Any = self._client.info("commandstats")
        calls = {name: each["calls"] for name, each in stats.items() if not name.startswith("cmdstat_info")}
        return calls.get("cmdstat_evalsha", 0), sum(calls.values())

    def memory(self) -> tuple[int, int]:
        """Return bytes in use without the streams, and bytes of the streams."""
        info: Any = self._client.info("memory")
        events = [self._keys.events(shard) for shard in range(self._keys.shards)]
        sizes: list[Any] = [self._client.memory_usage(each, samples=0) or 0 for each in events]
        return info["used_memory"] - sum(sizes), sum(sizes)

    async def idle(self, seconds: float) -> None:
        """Learn what Redis uses with nobody there."""
        begun, before = time.monotonic(), self.cpu_us()
        await trio.sleep(seconds)
        self.idle_us_s = (self.cpu_us() - before) / (time.monotonic() - begun)

    async def cost_us(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> float:
        """Return CPU µs of a piece of work, without the idle share."""
        begun, before = time.monotonic(), self.cpu_us()
        await work(*arguments)
        return max(0.0, self.cpu_us() - before - self.idle_us_s * (time.monotonic() - begun))


async def measure(url: str, keys: Keys, users: int, alone: int, rest_s: float = REST_S) -> Cost:
    """Return what a node costs a Redis that knows nothing of these keys.

    Args:
        url: the Redis.
        keys: names and shards.
        users: how many come and go together.
        alone: how many come and go one by one.
        rest_s: seconds of rest that are watched.
    """
    with open_client(url) as client:
        meter = _Meter(client, keys)
        await meter.idle(min(IDLE_S, rest_s))
        node = Node(url, keys, 4 * users, idle_timeout=IDLE_TIMEOUT_S)
        async with _running(node):
            rest = await _rest(meter, rest_s)
            single: list[Session] = []
            online_alone = await meter.cost_us(_one_by_one, node, alone, single)
            offline_alone = await meter.cost_us(_leave_one_by_one, node, single)
            other_before, stream_before = meter.memory()
            live: list[Session] = []
            online = await meter.cost_us(_all, node, users, live)
            other_online, stream_online = meter.memory()
            offline = await meter.cost_us(_leave, node, live)
            other_offline, _ = meter.memory()
        return Cost(
            keys.shards,
            rest,
            online / users,
            offline / users,
            online_alone / alone,
            offline_alone / alone,
            (other_online - other_before) / users,
            (stream_online - stream_before) / users,
            (other_offline - other_before) / users,
        )


@asynccontextmanager
async def _running(node: Node) -> AsyncIterator[None]:
    await node.start()
    async with trio.open_nursery() as nursery:
        for task in (node.relay.run, node.cluster.run, node.ticker.run):
            nursery.start_soon(task)
        while not all(writer.is_idle(time.monotonic()) for writer in node.relay.writers):  # noqa: ASYNC110 - once
            await trio.sleep(0.05)  # until all that a start costs is over
        yield
        nursery.cancel_scope.cancel()


async def _rest(meter: _Meter, seconds: float) -> Rest:
    scripts, commands = meter.calls()
    cpu_us = await meter.cost_us(trio.sleep, seconds)
    scripts_after, commands_after = meter.calls()
    return Rest((scripts_after - scripts) / seconds, (commands_after - commands) / seconds, cpu_us / seconds)


async def _all(node: Node, count: int, live: list[Session]) -> None:
    live += await node.log_in(f"user-{number}" for number in range(count))


async def _leave(node: Node, live: list[Session]) -> None:
    for session in live:
        node.core.received(session, _LOGOUT)
    await node.settled()


async def _one_by_one(node: Node, count: int, live: list[Session]) -> None:
    for number in range(count):
        live += await node.log_in([f"lone-{number}"])


async def _leave_one_by_one(node: Node, live: list[Session]) -> None:
    for session in live:
        await _leave(node, [session])


def table(costs: list[Cost], plan: Plan) -> str:
    """Return what was measured, and what follows from it, in Markdown."""
    shards = [f"{each.shards} shard{'s' if each.shards > 1 else ''}" for each in costs]

    def line(name: str, value: Callable[[Cost], float], digits: int = 1) -> list[str]:
        return [name, *(f"{value(each):,.{digits}f}" for each in costs)]

    measured = markdown(
        ["one node costs Redis", *shards],
        [
            line("at rest: scripts a second", lambda cost: cost.rest.scripts),
            line("at rest: commands a second, those in scripts too", lambda cost: cost.rest.commands),
            line("at rest: CPU, µs a second", lambda cost: cost.rest.cpu_us, 0),
            line("a user comes, many together: CPU µs", lambda cost: cost.online_us),
            line("a user goes, many together: CPU µs", lambda cost: cost.offline_us),
            line("a user comes alone: CPU µs", lambda cost: cost.online_alone_us, 0),
            line("a user goes alone: CPU µs", lambda cost: cost.offline_alone_us, 0),
            line("a user online: bytes", lambda cost: cost.user_bytes, 0),
            line("a user offline, last seen: bytes", lambda cost: cost.seen_bytes, 0),
            line("a stream entry: bytes", lambda cost: cost.entry_bytes, 0),
        ],
    )

    def alone_us(cost: Cost) -> float:
        return (cost.online_alone_us + cost.offline_alone_us) / 2

    def busy(cost: Cost) -> float:
        return (plan.transitions_s * alone_us(cost) + plan.nodes * cost.rest.cpu_us) / 1e6

    def crash_s(cost: Cost) -> float:
        return plan.users / plan.nodes * cost.offline_us / 1e6

    def memory_gb(cost: Cost) -> float:
        kept = plan.entries_kept * cost.shards * cost.entry_bytes
        return (plan.users * cost.user_bytes + kept) / 1e9

    needed = markdown(
        [f"{plan.users:,} users on {plan.nodes} nodes need", *shards],
        [
            line("transitions a second at the peak", lambda _cost: plan.transitions_s, 0),
            line("scripts a second at rest", lambda cost: plan.nodes * cost.rest.scripts, 0),
            line("cores of Redis at the peak, each transition alone in its batch", busy, 2),
            line("seconds of Redis when all users of one node end in one tick", crash_s, 2),
            line("GB of memory, all online and the streams full", memory_gb),
        ],
    )
    assumed = (
        f"Assumed: each user comes and goes {plan.visits:g} times a day, {plan.peak:g} times as often at the "
        f"peak; streams capped at {plan.entries_kept:,} entries a shard; nobody subscribes to the hints."
    )
    return f"{measured}\n\n{needed}\n\n{assumed}"


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.redis_cost", description=__doc__)
    parser.add_argument("--users", type=int, default=50_000, help="who come and go together (default 50,000)")
    parser.add_argument("--alone", type=int, default=150, help="who come and go one by one (default 150)")
    parser.add_argument("--redis", default="", metavar="URL", help="a Redis to use (default: a private one)")
    arguments = parser.parse_args()
    costs = []
    for shards in SHARDS:
        keys = Keys("presence-bench", shards)
        with redis_for(arguments.redis, keys) as url:
            costs.append(trio.run(measure, url, keys, arguments.users, arguments.alone))
    print(table(costs, Plan()))


if __name__ == "__main__":
    main()
