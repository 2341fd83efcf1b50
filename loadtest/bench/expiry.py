"""Everybody ends in one tick: ``python -m loadtest.bench.expiry``.

Sessions are made in one process, without sockets, through the real core, ticker, outbox, relay and store,
against a private Redis. First all log in, then all end in one tick. A phase is over
when Redis has acknowledged its last change.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import trio
from trio.lowlevel import Task

from loadtest.bench.inprocess import TICK_S, Node
from loadtest.outcome import markdown
from presence.embedded import embedded_redis
from presence.process import tune_interpreter
from presence.store.client import Redis, open_client
from presence.store.keys import Keys

IDLE_TIMEOUT_S: Final = 5.0
NOTICED_S: Final = 0.020  # what a client may notice of a loop that is held
PAGE: Final = 10_000
HEAD: Final = (
    "phase | sessions | seconds to the last acknowledgement | longest stretch, ms | of which task "
    f"| stretches over {NOTICED_S * 1000:.0f} ms | Python CPU, µs each | Redis CPU, µs each | entries written"
)


class _Stretches(trio.abc.Instrument):
    """How long the event loop was held: stretches in which no other task could run, by trio's own account.

    Attributes:
        longest_s, longest_task: the longest since `clear`, and the name of the task whose it was.
        over: stretches longer than `NOTICED_S`.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin again, with the present task's stretch too."""
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
class Phase:
    """What one phase took.

    Attributes:
        name, sessions: what happened, and to how many.
        seconds: from the first change to the acknowledgement of the last.
        stretch_s, stretch_task, over: see `_Stretches`.
        python_s, redis_s: processor time of this process, all threads, and of Redis.
        entries: stream entries written.
    """

    name: str
    sessions: int
    seconds: float
    stretch_s: float
    stretch_task: str
    over: int
    python_s: float
    redis_s: float
    entries: int

    def row(self) -> str:
        """Return its line of the table."""
        return (
            f"{self.name} | {self.sessions:,} | {self.seconds:.2f} | {self.stretch_s * 1000:.1f} "
            f"| {self.stretch_task.rpartition('.')[2]} | {self.over} "
            f"| {self.python_s / self.sessions * 1e6:.1f} | {self.redis_s / self.sessions * 1e6:.1f} "
            f"| {self.entries:,}"
        )


@dataclass(frozen=True)
class Result:
    """All phases, what stands in the stream by type, and how many changes the outbox skipped."""

    phases: list[Phase]
    entries: dict[str, int]
    skipped: int

    def is_whole(self) -> bool:
        """Whether everybody's two transitions are in the stream, and nothing else."""
        sessions = self.phases[-1].sessions
        return self.entries == {"online": sessions, "offline": sessions} and not self.skipped

    def table(self) -> str:
        """Return what was measured, and what stands in the stream."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.entries.items()))
        rows = markdown(HEAD, (each.row() for each in self.phases))
        return f"{rows}\n\nIn the stream: {kinds}; gaps {self.entries.get('gap', 0)}, skipped {self.skipped}"


class _Stopwatch:
    """What Redis, this process and the loop have used up since it was made."""

    def __init__(self, client: Redis, keys: Keys, stretches: _Stretches) -> None:
        self._client, self._keys, self._stretches = client, keys, stretches
        self._redis_s, self._entries = self._redis_cpu(), self._length()
        stretches.clear()
        self.begun = time.perf_counter()
        self._python_s = time.process_time()

    def stop(self, name: str, sessions: int) -> Phase:
        seconds, python_s = time.perf_counter() - self.begun, time.process_time() - self._python_s
        held = self._stretches.longest_s, self._stretches.longest_task, self._stretches.over
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
    node, stretches = Node(redis_url, keys, sessions, idle_timeout), _Stretches()
    trio.lowlevel.add_instrument(stretches)
    with open_client(redis_url) as client:
        await node.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.relay.run)
            await trio.sleep(0.1)
            watch = _Stopwatch(client, keys, stretches)
            live = await node.log_in(f"user-{number}" for number in range(sessions))
            phases = [watch.stop("log in", sessions)]
            node.core.beats(live)
            live.clear()
            nursery.start_soon(node.ticker.run)
            await trio.sleep(idle_timeout / 2)
            watch = _Stopwatch(client, keys, stretches)
            await _until(lambda: len(node.core.sessions) < sessions, idle_timeout + 3 * TICK_S)
            watch.begun = time.perf_counter()
            await _until(lambda: not node.core.sessions, 60)
            await node.settled()
            phases.append(watch.stop("end in one tick", sessions))
            nursery.cancel_scope.cancel()
        return Result(phases, _types(client, keys), node.outbox.statistics().dropped_total)


def _types(client: Redis, keys: Keys) -> dict[str, int]:
    """Count the stream's entries by their type."""
    counts: Counter[str] = Counter()
    for shard in range(keys.shards):
        start = "-"
        while entries := cast("list[Any]", client.xrange(keys.events(shard), start, count=PAGE)):
            counts.update(fields[b"type"].decode() for _, fields in entries)
            start = "(" + entries[-1][0].decode()
    return dict(counts)


def main() -> None:
    """Print a table; fail if an event is missing."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.expiry", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000, help="how many end (default 100,000)")
    parser.add_argument("--shards", type=int, default=1, help="shards of the data (default 1)")
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
