"""The timing wheel beside a heap with lazy deletion, and its ticks: ``python -m benchmarks.wheel``.

Touches are measured in simulated time: every key is touched about every 12 s, in random order, with a
time-out of 30 s. Wheel and heap do the whole job: a touch, and at each tick whatever is due.
"""

import argparse
import gc
import heapq
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtest.arguments import from_1
from loadtest.outcome import markdown
from presence.core.wheel import TimingWheel

SIZES = (10_000, 100_000, 1_000_000)
MIN_TOUCHES = 500_000
EXPIRE_KEYS = 256  # as many as the server takes between two checkpoints
IDLE_TIMEOUT_S = 30.0
SLOT_S = 0.5
BEAT_S = 12.0


@dataclass(frozen=True)
class Wheel:
    """What a timing wheel of so many keys costs; see `tick_costs`."""

    keys: int
    touch_ns: float
    heap_ns: float
    idle_tick_us: float
    scan_us: float
    taken_ns: float


def wheel_table(wheels: list[Wheel]) -> str:
    head = (
        "keys | touch, ns | … in a heap with lazy deletion | tick without a due key, µs "
        "| … by looking at every deadline | each key taken, ns"
    )
    rows = (
        f"{each.keys:,} | {each.touch_ns:.0f} | {each.heap_ns:.0f} | {each.idle_tick_us:.2f} "
        f"| {each.scan_us:,.0f} | {each.taken_ns:.0f}"
        for each in wheels
    )
    return markdown(head, rows)


def on_the_wheel(keys: list[str], order: list[str]) -> float:
    """Return seconds for touching all of `order`, spread over simulated time."""
    wheel: TimingWheel[str] = TimingWheel(128)
    per_tick = max(1, round(len(keys) / BEAT_S * SLOT_S))
    reach = int(IDLE_TIMEOUT_S / SLOT_S) + 1
    for n, key in enumerate(keys):
        wheel.touch(key, reach - int((1 - n / len(keys)) * BEAT_S / SLOT_S))
    touch, expire = wheel.touch, wheel.pop_due
    started = time.perf_counter()
    for tick, start in enumerate(range(0, len(order), per_tick), 1):
        for key in order[start : start + per_tick]:
            touch(key, tick + reach)
        while expire(tick, EXPIRE_KEYS):
            pass
    return time.perf_counter() - started


def on_the_heap(keys: list[str], order: list[str]) -> float:
    """Return the same for a heap of (deadline, key); stale entries are skipped when popped."""
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
    started = time.perf_counter()
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
    return time.perf_counter() - started


def touch_costs(size: int, touches: int, rounds: int) -> tuple[float, float]:
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


def tick_costs(size: int) -> tuple[float, float, float]:
    """Return what a tick costs with `size` keys.

    Returns:
        µs of a tick at which no key is due; µs of a scan of every deadline instead; ns per key of a tick at
        which a slot's keys are due.
    """
    wheel: TimingWheel[str] = TimingWheel(128)
    slots = int(BEAT_S / SLOT_S)
    first = int(IDLE_TIMEOUT_S / SLOT_S)
    for number in range(size):
        wheel.touch(f"user-{number}", first + number % slots)
    idle = []
    for tick in range(1, first):
        started = time.perf_counter()
        wheel.pop_due(tick, EXPIRE_KEYS)
        idle.append(time.perf_counter() - started)
    deadlines = {f"user-{number}": first + number % slots for number in range(size)}
    started = time.perf_counter()
    due = [key for key, deadline in deadlines.items() if deadline < first]
    scan = time.perf_counter() - started
    expired = 0
    started = time.perf_counter()
    while keys := wheel.pop_due(first, EXPIRE_KEYS):
        expired += len(keys)
    each = (time.perf_counter() - started) / expired
    if due or expired != len(range(0, size, slots)):
        raise RuntimeError("the wheel took others than those that were due")
    return statistics.median(idle) * 1e6, scan * 1e6, each * 1e9


def measure(size: int, rounds: int) -> Wheel:
    """Return all costs of a wheel with `size` keys, medians of some rounds."""
    touch_ns, heap_ns = touch_costs(size, max(MIN_TOUCHES, size), rounds)
    ticks = [tick_costs(size) for _ in range(rounds)]
    idle_us, scan_us, taken_ns = (statistics.median(each) for each in zip(*ticks, strict=True))
    return Wheel(size, touch_ns, heap_ns, idle_us, scan_us, taken_ns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wheel", description=__doc__)
    parser.add_argument("--rounds", type=from_1, default=3, help="alternating rounds (default 3)")
    arguments = parser.parse_args()
    print(wheel_table([measure(size, arguments.rounds) for size in SIZES]))


if __name__ == "__main__":
    main()
