"""The timing wheel beside a heap with lazy deletion: nanoseconds for each touch, expiry included.

Simulated time: every key is touched about every 12 s, in random order, with a time-out of 30 s. Both
structures do the whole job: a touch, and at each tick whatever is due. ``python -m loadtest.bench.wheel``.
"""

import argparse
import gc
import heapq
import random
import statistics
import time
from collections.abc import Callable

from presence.wheel import TimingWheel

IDLE_TIMEOUT_S = 30.0
SLOT_S = 0.5
BEAT_S = 12.0


def on_the_wheel(keys: list[str], order: list[str]) -> float:
    """Return seconds for touching all of `order`, spread over simulated time."""
    wheel: TimingWheel[str] = TimingWheel(128)
    per_tick = max(1, round(len(keys) / BEAT_S * SLOT_S))
    reach = int(IDLE_TIMEOUT_S / SLOT_S) + 1
    for n, key in enumerate(keys):
        wheel.touch(key, reach - int((1 - n / len(keys)) * BEAT_S / SLOT_S))
    touch, expire = wheel.touch, wheel.expire
    begun = time.perf_counter()
    for tick, start in enumerate(range(0, len(order), per_tick), 1):
        for key in order[start : start + per_tick]:
            touch(key, tick + reach)
        while expire(tick, 256):
            pass
    return time.perf_counter() - begun


def on_the_heap(keys: list[str], order: list[str]) -> float:
    """Return seconds for the same with a heap of (deadline, key); stale entries are skipped when popped."""
    deadlines: dict[str, float] = {}
    heap: list[tuple[float, str]] = []
    per_tick = max(1, round(len(keys) / BEAT_S * SLOT_S))
    # A heap in its steady state holds the stale entries of the last 30 s as well.
    for age in range(int(IDLE_TIMEOUT_S / BEAT_S), -1, -1):
        for n, key in enumerate(keys):
            deadlines[key] = IDLE_TIMEOUT_S - (age + 1 - n / len(keys)) * BEAT_S
            heap.append((deadlines[key], key))
    heapq.heapify(heap)
    push, pop = heapq.heappush, heapq.heappop
    now, step = 0.0, SLOT_S / per_tick
    begun = time.perf_counter()
    for start in range(0, len(order), per_tick):
        for key in order[start : start + per_tick]:
            now += step
            deadline = now + IDLE_TIMEOUT_S
            deadlines[key] = deadline
            push(heap, (deadline, key))
        while heap and heap[0][0] <= now:
            deadline, key = pop(heap)
            if deadlines.get(key) == deadline:
                del deadlines[key]
    return time.perf_counter() - begun


def compare(size: int, touches: int, rounds: int) -> tuple[float, float]:
    """Return ns per touch on wheel and heap, medians of alternating rounds."""
    keys = [f"user-{n}" for n in range(size)]
    random.shuffle(keys)
    order: list[str] = []
    while len(order) < touches:
        again = keys[:]
        random.shuffle(again)
        order += again
    order = order[:touches]
    results: dict[Callable[[list[str], list[str]], float], list[float]] = {on_the_wheel: [], on_the_heap: []}
    for _ in range(rounds):
        for run, seconds in results.items():
            gc.collect()
            seconds.append(run(keys, order) / len(order) * 1e9)
    wheel, heap = (statistics.median(seconds) for seconds in results.values())
    return wheel, heap


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    arguments = parser.parse_args()
    print("| keys | wheel, ns a touch | heapq with lazy deletion | ratio |")
    print("| --- | --- | --- | --- |")
    for size in (1_000, 100_000, 1_000_000):
        wheel, heap = compare(size, max(500_000, size), arguments.rounds)
        print(f"| {size:,} | {wheel:.0f} | {heap:.0f} | {wheel / heap:.2f} |", flush=True)


if __name__ == "__main__":
    main()
