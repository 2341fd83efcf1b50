"""Everybody ends in one tick: ``python -m loadtest.bench.expiry``.

Sessions are made in one process, without sockets, through the real core, ticker, outbox, relay and store,
against a private Redis or that of ``--redis``. First all log in; then Redis loses its counters of the
node, so that all are registered anew; then all end in one tick. A phase is over when Redis has
acknowledged its last change.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, cast

import trio

from loadtest.bench.inprocess import TICK_S, Node, redis_for
from loadtest.bench.stretches import Stretches, watched
from loadtest.outcome import markdown
from presence.process import tune_interpreter
from presence.registry import Session
from presence.store.client import Redis, open_client
from presence.store.keys import Keys

IDLE_TIMEOUT_S: Final = 5.0  # a session that is silent for so long is not registered anew
PAGE: Final = 10_000


@dataclass(frozen=True)
class Phase:
    """What one phase took.

    Attributes:
        name: what happened.
        sessions: to how many.
        seconds: from the first change to the acknowledgement of the last.
        stretch_s: the longest stretch in which no other task could run.
        stretch_task: whose it was.
        over: stretches longer than `Stretches.LIMIT_S`.
        gc_s: the longest collection; part of some stretch.
        python_s: processor time of this process, all threads.
        redis_s: processor time of Redis.
        entries: stream entries written.
    """

    name: str
    sessions: int
    seconds: float
    stretch_s: float
    stretch_task: str
    over: int
    gc_s: float
    python_s: float
    redis_s: float
    entries: int


@dataclass(frozen=True)
class Result:
    """All phases, what stands in the stream by type, and how many changes the outbox skipped."""

    phases: list[Phase]
    entries: dict[str, int]
    skipped: int

    @property
    def gaps(self) -> int:
        """Gap entries in the stream."""
        return self.entries.get("gap", 0)

    def is_whole(self) -> bool:
        """Whether everybody's two transitions are in the stream, and nothing else."""
        sessions = self.phases[-1].sessions
        return self.entries == {"online": sessions, "offline": sessions} and not self.skipped


class _Stopwatch:
    """What Redis, this process and the loop have used up since it was made."""

    def __init__(self, client: Redis, keys: Keys, stretches: Stretches) -> None:
        self._client, self._keys, self._stretches = client, keys, stretches
        self._redis_s, self._entries = self._redis_cpu(), self._length()
        stretches.clear()
        self.begun = time.perf_counter()
        self._python_s = time.process_time()

    def stop(self, name: str, sessions: int) -> Phase:
        seconds, python_s = time.perf_counter() - self.begun, time.process_time() - self._python_s
        stretches = self._stretches
        held = stretches.longest_s, stretches.longest_task, stretches.over, stretches.gc_longest_s
        redis_s, entries = self._redis_cpu() - self._redis_s, self._length() - self._entries
        return Phase(name, sessions, seconds, *held, python_s, redis_s, entries)

    def _redis_cpu(self) -> float:
        info: Any = self._client.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"])

    def _length(self) -> int:
        lengths: list[Any] = [self._client.xlen(self._keys.events(s)) for s in range(self._keys.shards)]
        return sum(lengths)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - it looks on and disturbs nothing
            await trio.sleep(0.001)


async def play(redis_url: str, keys: Keys, sessions: int, idle_timeout: float = IDLE_TIMEOUT_S) -> Result:
    """Run the phases against a Redis that knows nothing of these keys."""
    node = Node(redis_url, keys, sessions + keys.shards, idle_timeout)
    with open_client(redis_url) as client, watched() as stretches:
        await node.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.relay.run)
            await trio.sleep(0.1)
            watch = _Stopwatch(client, keys, stretches)
            live = await node.log_in(f"user-{number}" for number in range(sessions))
            phases = [watch.stop("log in", sessions)]
            phases.append(await _register(node, client, live, stretches))
            node.core.beats(live)
            alive = len(live)
            live.clear()
            nursery.start_soon(node.ticker.run)
            await trio.sleep(idle_timeout / 2)
            watch = _Stopwatch(client, keys, stretches)
            await _until(lambda: len(node.core.sessions) < alive, idle_timeout + 3 * TICK_S)
            watch.begun = time.perf_counter()
            await _until(lambda: not node.core.sessions, 60)
            await node.settled()
            phases.append(watch.stop("end in one tick", alive))
            nursery.cancel_scope.cancel()
        return Result(phases, _types(client, keys), node.outbox.statistics().dropped_total)


async def _register(node: Node, client: Redis, live: list[Session], stretches: Stretches) -> Phase:
    """Let Redis forget the node's counters, so that it registers all sessions anew when one more logs in."""
    node.core.beats(live)
    keys = node.keys
    for shard in range(keys.shards):
        client.delete(keys.node(shard, node.relay.node))
    before, resyncs = node.relay.statistics().items, node.relay.statistics().resyncs
    newcomers = [
        next(uid for uid in (f"late-{n}" for n in count()) if keys.shard(uid) == shard)
        for shard in range(keys.shards)
    ]
    watch = _Stopwatch(client, keys, stretches)
    live += await node.log_in(newcomers)
    await _until(lambda: node.relay.statistics().items >= before + len(live), 60)
    if node.relay.statistics().resyncs != resyncs + keys.shards:
        raise RuntimeError("the node did not notice that Redis had forgotten it")
    return watch.stop("register anew", len(live))


def _types(client: Redis, keys: Keys) -> dict[str, int]:
    """Count the stream's entries by their type."""
    counts: Counter[str] = Counter()
    for shard in range(keys.shards):
        start = "-"
        while entries := cast("list[Any]", client.xrange(keys.events(shard), start, count=PAGE)):
            counts.update(fields[b"type"].decode() for _, fields in entries)
            start = "(" + entries[-1][0].decode()
    return dict(counts)


def table(result: Result) -> str:
    """Return what was measured, as a Markdown table, and what stands in the stream."""
    head = (
        "phase | sessions | seconds to the last acknowledgement | longest stretch, ms | of which task "
        f"| stretches over {Stretches.LIMIT_S * 1000:.0f} ms | longest collection, ms | Python CPU, µs each "
        "| Redis CPU, µs each | entries written"
    )
    body = (
        f"{each.name} | {each.sessions:,} | {each.seconds:.2f} | {each.stretch_s * 1000:.1f} "
        f"| {each.stretch_task.rpartition('.')[2] or each.stretch_task} | {each.over} "
        f"| {each.gc_s * 1000:.1f} "
        f"| {each.python_s / each.sessions * 1e6:.1f} | {each.redis_s / each.sessions * 1e6:.1f} "
        f"| {each.entries:,}"
        for each in result.phases
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.entries.items()))
    return f"{markdown(head, body)}\n\nIn the stream: {kinds}; gaps {result.gaps}, skipped {result.skipped}"


def main() -> None:
    """Print a table; fail if an event is missing."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.expiry", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000, help="how many end (default 100,000)")
    parser.add_argument("--shards", type=int, default=1, help="shards of the data (default 1)")
    parser.add_argument("--redis", default="", metavar="URL", help="a Redis to use (default: a private one)")
    arguments = parser.parse_args()
    keys = Keys("presence-bench", arguments.shards)
    tune_interpreter()
    with redis_for(arguments.redis, keys) as url:
        result = trio.run(play, url, keys, arguments.sessions)
    print(table(result))
    if not result.is_whole():
        raise SystemExit("events are missing")


if __name__ == "__main__":
    main()
