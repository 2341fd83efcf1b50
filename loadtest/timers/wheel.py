"""What the presence wheel in Redis costs: ``python -m loadtest.timers.wheel``.

For each number of users, in a private Redis: memory of a user online, processor time of Redis and of this
process for a touch that moves the user (in calls of one, and of many), and how long it takes to take all of
them when they fall silent together. Touches come as fast as they can; the rate is what one process reached.
"""

import argparse
import random
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.bench.report import rows
from presence.embedded import embedded_redis
from presence.store.client import Redis, open_client
from presence.timers.redis_wheel import RedisWheel

TICK_S: Final = 0.05  # so short that nearly every touch moves its user
BATCHES: Final = (1, 20, 500)
LIMIT: Final = 500  # users that a call takes


@dataclass(frozen=True)
class Cost:
    """What touches of one batch size cost; microseconds a touch."""

    batch: int
    per_s: float
    redis_us: float
    own_us: float


@dataclass(frozen=True)
class Result:
    """What a number of users cost; `taken_s`: until all were taken, `longest_ms`: the longest call of it."""

    users: int
    bytes_a_user: float
    costs: list[Cost]
    taken_s: float
    longest_ms: float


def redis_cpu_us(client: Redis) -> float:
    """Return the processor time that Redis has used."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6


def own_cpu_us() -> float:
    """Return the processor time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def memory(client: Redis) -> int:
    """Return the bytes that Redis uses without the stream, which is capped by its own setting."""
    info: Any = client.info("memory")
    streams: Any = client.keys("*:events")
    sizes: list[Any] = [client.memory_usage(each, samples=0) or 0 for each in streams]
    return int(info["used_memory"] - sum(sizes))


def touches(wheel: RedisWheel, client: Redis, uids: list[str], batch: int, seconds: float) -> Cost:
    """Touch users at random for a while."""
    chance = random.Random(batch)
    count, begun, redis_us, own_us = 0, time.monotonic(), redis_cpu_us(client), own_cpu_us()
    while time.monotonic() - begun < seconds:
        wheel.touch_many(chance.sample(uids, batch))
        count += batch
    passed_s = time.monotonic() - begun
    redis_us, own_us = redis_cpu_us(client) - redis_us, own_cpu_us() - own_us
    return Cost(batch, count / passed_s, redis_us / count, own_us / count)


def measure(users: int, seconds: float) -> Result:
    """Return what a number of users cost; `seconds` for each size of batch."""
    uids = [f"user-{n:07d}" for n in range(users)]
    with embedded_redis() as server, open_client(server.url) as client:
        before = memory(client)
        wheel = RedisWheel(server.url, "load", idle_timeout_s=3600.0, tick_s=TICK_S)
        wheel.touch_many(uids)
        bytes_a_user = (memory(client) - before) / users
        batches = [each for each in BATCHES if each <= users]
        costs = [touches(wheel, client, uids, batch, seconds) for batch in batches]
        wheel.close()
        silent = RedisWheel(server.url, "load", idle_timeout_s=TICK_S, tick_s=TICK_S)
        silent.touch_many(uids)
        time.sleep(2 * TICK_S)
        taken, longest_s, begun = 0, 0.0, time.monotonic()
        while taken < users:
            asked = time.monotonic()
            taken += len(silent.due(LIMIT))
            longest_s = max(longest_s, time.monotonic() - asked)
        taken_s = time.monotonic() - begun
        silent.close()
    return Result(users, bytes_a_user, costs, taken_s, longest_s * 1000)


def table(results: list[Result]) -> str:
    """Return the report."""
    head = ["users", "bytes/user", "touches/call", "touches/s", "Redis, µs/touch", "process, µs/touch"]
    body = [
        [
            f"{each.users:,}",
            f"{each.bytes_a_user:.0f}",
            str(cost.batch),
            f"{cost.per_s:,.0f}",
            f"{cost.redis_us:.1f}",
            f"{cost.own_us:.1f}",
        ]
        for each in results
        for cost in each.costs
    ]
    silent = [[f"{each.users:,}", f"{each.taken_s:.2f}", f"{each.longest_ms:.1f}"] for each in results]
    late = ["users silent together", "all taken in, s", f"longest call of {LIMIT}, ms"]
    return f"{rows(head, body)}\n\n{rows(late, silent)}\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.timers.wheel", description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size of batch")
    parser.add_argument("--out", type=Path, help="a file for the tables")
    options = parser.parse_args(arguments)
    results = []
    for users in options.users:
        sys.stderr.write(f"{users:,} users\n")
        results.append(measure(users, options.seconds))
    text = table(results)
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
