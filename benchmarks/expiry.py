"""``python -m benchmarks.expiry``: 100,000 sessions end in one tick.

Sessions are made in one process, without sockets, through the real core, ticker, outbox, relay and store,
against a private Redis. Prints the time until Redis has acknowledged the last change, and the longest
stretch in which no other task had a turn.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import trio
from trio.lowlevel import Task

from benchmarks.inprocess_node import TICK_S, InProcessNode
from loadtest.arguments import from_1
from loadtest.outcome import markdown
from loadtest.usage import redis_cpu_seconds
from presence.server.process import tune_interpreter
from presence.store.embedded import embedded_redis
from presence.store.keys import Keys
from presence.store.redis_client import open_client

IDLE_TIMEOUT_S: Final = 5.0
NOTICED_S: Final = 0.020  # what a client may notice of a loop that is held
PAGE: Final = 10_000


class _Stretches(trio.abc.Instrument):
    """How long a task held the event loop, by trio's own account.

    Attributes:
        longest_s, longest_task: the longest stretch since `clear`, and its task.
        over: stretches longer than `NOTICED_S`.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._begun = time.perf_counter()
        self.longest_s, self.longest_task, self.over = 0.0, "", 0

    def before_task_step(self, task: Task) -> None:
        self._begun = time.perf_counter()

    def after_task_step(self, task: Task) -> None:
        took = time.perf_counter() - self._begun
        if took > self.longest_s:
            self.longest_s, self.longest_task = took, task.name
        self.over += took > NOTICED_S


@dataclass(frozen=True)
class ExpiryResult:
    """The cost of the ends."""

    sessions: int  # how many ended
    seconds: float  # from the first end to the acknowledgement of the last
    # See `_Stretches`
    stretch_s: float
    stretch_task: str
    over: int
    # Processor time of this process, all threads, and of Redis
    python_s: float
    redis_s: float
    entries: dict[str, int]  # in the stream in the end, by type
    skipped: int  # changes that the outbox skipped

    def is_whole(self) -> bool:
        """Whether the stream has exactly both transitions of each user."""
        return self.entries == {"online": self.sessions, "offline": self.sessions} and not self.skipped

    def table(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.entries.items()))
        rows = {
            "sessions that end in one tick": f"{self.sessions:,}",
            "seconds to the last acknowledgement": f"{self.seconds:.2f}",
            "longest stretch, ms, and of which task": f"{self.stretch_s * 1000:.1f}, {self.stretch_task}",
            f"stretches over {NOTICED_S * 1000:.0f} ms": self.over,
            "Python CPU, µs each": f"{self.python_s / self.sessions * 1e6:.1f}",
            "Redis CPU, µs each": f"{self.redis_s / self.sessions * 1e6:.1f}",
            "in the stream": f"{kinds}; gaps {self.entries.get('gap', 0)}, skipped {self.skipped}",
        }
        return markdown("measured | ", rows.items())


async def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - it looks on and disturbs nothing
            await trio.sleep(0.001)


async def play(
    redis_url: str, keys: Keys, sessions: int, idle_timeout: float = IDLE_TIMEOUT_S
) -> ExpiryResult:
    """Log users in and let them expire, on a Redis without these keys."""
    node, stretches = InProcessNode(redis_url, keys, sessions, idle_timeout), _Stretches()
    trio.lowlevel.add_instrument(stretches)
    with open_client(redis_url) as client:
        await node.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.relay.run)
            live = await node.log_in(f"user-{number}" for number in range(sessions))
            node.engine.connections_read(live)
            live.clear()
            nursery.start_soon(node.ticker.run)
            await trio.sleep(idle_timeout / 2)
            redis_s, python_s = redis_cpu_seconds(client), time.process_time()
            stretches.clear()
            await _wait_until(lambda: len(node.engine.registry) < sessions, idle_timeout + 3 * TICK_S)
            started = time.perf_counter()
            await _wait_until(lambda: not node.engine.registry, 60)
            await node.settled()
            seconds, python_s = time.perf_counter() - started, time.process_time() - python_s
            longest = stretches.longest_s, stretches.longest_task.rpartition(".")[2], stretches.over
            redis_s = redis_cpu_seconds(client) - redis_s
            nursery.cancel_scope.cancel()
        skipped = node.outbox.statistics().skipped_total
        return ExpiryResult(sessions, seconds, *longest, python_s, redis_s, _types(client, keys), skipped)


def _types(client: Any, keys: Keys) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for shard in range(keys.shards):
        start = "-"
        while entries := client.xrange(keys.events(shard), start, count=PAGE):
            counts.update(fields[b"type"].decode() for _, fields in entries)
            start = "(" + entries[-1][0].decode()
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expiry", description=__doc__)
    parser.add_argument("--sessions", type=from_1, default=100_000, help="how many end (default 100,000)")
    parser.add_argument("--shards", type=from_1, default=1, help="shards of the data (default 1)")
    arguments = parser.parse_args()
    keys = Keys("presence-bench", arguments.shards)
    tune_interpreter()
    with embedded_redis() as redis:
        result = trio.run(play, redis.url, keys, arguments.sessions)
    print(result.table())
    if not result.is_whole():
        raise SystemExit("events are missing")


if __name__ == "__main__":
    main()
