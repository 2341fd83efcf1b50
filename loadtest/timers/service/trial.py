"""One kind, one number of timers, in a process of its own: what it costs, and how late it is."""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import trio
from trio.testing import MockClock

from loadtest.timers.service.kinds import KINDS, Timers

ADD_CHUNK: Final = 500  # timers added between two checkpoints: what is added must not make others late
GRACE_S: Final = 60.0  # how long after the last deadline is waited for those that are late
SEED: Final = 7


@dataclass
class Outcome:
    """Processor time in ns a timer, memory in bytes a timer, lateness in ms.

    Attributes:
        fired: of `count`.
        early: called before their deadline.
        gone_ns: to cancel and to be rid of what was cancelled, both together.
        error: why there are no figures.
    """

    kind: str
    count: int
    span_s: float
    mode: str
    fired: int = 0
    early: int = 0
    add_ns: float = 0.0
    fire_ns: float = 0.0
    cancel_ns: float = 0.0
    gone_ns: float = 0.0
    timer_bytes: float = 0.0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    error: str = ""


class Watch:
    """The callback of all timers: notes how late it is."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.late_s = array("d")

    def __call__(self, deadline: float) -> None:
        """Be the callback of a timer."""
        self.late_s.append(self._now() - deadline)


def trial(outcome: Outcome, lead_s: float) -> None:
    """Play a trial, and put its figures into the outcome, or why there are none."""
    clock = MockClock(autojump_threshold=0) if outcome.mode == "mock" else None
    try:
        trio.run(play, outcome, lead_s, clock=clock)
    except MemoryError:
        outcome.error = "out of memory"
    except BaseExceptionGroup as group:
        outcome.error = repr(group.exceptions[0])


async def play(outcome: Outcome, lead_s: float) -> None:
    """Add, and let all fire; or add, and cancel all but one in a hundred in random order."""
    now = trio.lowlevel.current_clock().current_time
    watch = Watch(now)
    chance = random.Random(SEED)
    delays_s = array("d", (chance.random() * outcome.span_s for _ in range(outcome.count)))
    handles: list[Any] = []
    cancels = outcome.mode == "cancel"
    async with KINDS[outcome.kind]() as timers:
        begins = now() + lead_s
        memory, used = resident_bytes(), time.process_time()
        for start in range(0, outcome.count, ADD_CHUNK):
            for delay_s in delays_s[start : start + ADD_CHUNK]:
                deadline = begins + delay_s
                handle = timers.schedule(deadline - now(), watch, deadline)
                if cancels:
                    handles.append(handle)
            await trio.lowlevel.checkpoint()
        outcome.add_ns = 1e9 * (time.process_time() - used) / outcome.count
        outcome.timer_bytes = (resident_bytes() - memory) / outcome.count - 8 * cancels
        if now() > begins:
            raise RuntimeError(f"adding took {now() - begins:.1f} s longer than the lead of {lead_s:.0f} s")
        if cancels:
            await cancel_most(outcome, timers, handles, chance)
            return
        await trio.sleep_until(begins)
        used = time.process_time()
        await trio.sleep_until(begins + outcome.span_s)
        with trio.move_on_after(GRACE_S):
            while len(watch.late_s) < outcome.count:  # noqa: ASYNC110 # an event would be one more cost a timer
                await trio.sleep(0.05)
        outcome.fire_ns = 1e9 * (time.process_time() - used) / outcome.count
    note_lateness(outcome, watch.late_s)


async def cancel_most(outcome: Outcome, timers: Timers, handles: list[Any], chance: random.Random) -> None:
    """Cancel, and wait until even what needs a task of its own to end has gone."""
    chance.shuffle(handles)
    del handles[outcome.count * 99 // 100 :]
    used = time.process_time()
    for start in range(0, len(handles), ADD_CHUNK):
        for handle in handles[start : start + ADD_CHUNK]:
            timers.cancel(handle)
    outcome.cancel_ns = 1e9 * (time.process_time() - used) / len(handles)
    await trio.sleep(0.05)
    outcome.gone_ns = 1e9 * (time.process_time() - used) / len(handles)


def note_lateness(outcome: Outcome, late_s: array[float]) -> None:
    """Put the figures of all that fired into the outcome."""
    late = sorted(late_s)
    outcome.fired = len(late)
    outcome.early = sum(each < 0 for each in late)
    if late:
        outcome.mean_ms = 1000 * sum(late) / len(late)
        outcome.p50_ms = 1000 * late[len(late) // 2]
        outcome.p99_ms = 1000 * late[len(late) * 99 // 100]
        outcome.max_ms = 1000 * late[-1]


def resident_bytes() -> int:
    """Return the memory that this process holds (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main(words: list[str] | None = None) -> int:
    """Run a trial and print its outcome as JSON."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.timers.service.trial")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("count", type=int)
    parser.add_argument("span_s", type=float)
    parser.add_argument("mode", choices=["real", "mock", "cancel"])
    parser.add_argument("--lead", type=float, default=5.0, help="seconds for adding")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that the process may take")
    arguments = parser.parse_args(words)
    limit = int(arguments.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    gc.disable()  # of every kind: a full collection over a million timers is a pause of most of a second
    outcome = Outcome(arguments.kind, arguments.count, arguments.span_s, arguments.mode)
    trial(outcome, arguments.lead)
    print(json.dumps(asdict(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
