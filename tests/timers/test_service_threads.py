"""The timer service's verbs for other threads: real threads, a real clock, and short delays."""

import time

import pytest
import trio

from presence.timers.interface import TimerError, TimerFull
from presence.timers.service import open_timer_service

LIMIT_S = 20.0  # a machine under load


async def test_threads_schedule_and_all_fires_once_and_none_early() -> None:
    fired: list[tuple[int, float]] = []
    count, threads, all_fired = 250, 4, trio.Event()

    def fire(key: int, asked: float) -> None:
        fired.append((key, time.perf_counter() - asked))
        if len(fired) == count * threads:
            all_fired.set()

    async with open_timer_service() as timers:

        def schedule(thread: int) -> None:
            for n in range(count):
                timers.from_threads.schedule(0.02, fire, thread * count + n, time.perf_counter())

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for number in range(threads):
                    nursery.start_soon(trio.to_thread.run_sync, schedule, number)
            await all_fired.wait()
        assert timers.statistics().pending == 0
    assert sorted(key for key, _ in fired) == list(range(count * threads))
    assert min(after_s for _, after_s in fired) >= 0.02


async def test_a_thread_is_told_whether_a_timer_will_not_fire() -> None:
    fired = trio.Event()
    async with open_timer_service() as timers:
        soon = timers.schedule(0.0, fired.set)
        with trio.fail_after(LIMIT_S):
            await fired.wait()
        late = await trio.to_thread.run_sync(timers.from_threads.schedule, 60.0, int)
        cancel = timers.from_threads.cancel
        told = await trio.to_thread.run_sync(lambda: [cancel(soon), cancel(late), cancel(late)])
        assert told == [False, True, False]
        assert timers.statistics().pending == 0


async def test_bounds_hold_for_threads_too() -> None:
    async with open_timer_service(pending_max=1) as timers:
        schedule = timers.from_threads.schedule
        with pytest.raises(TimerError, match="delay_s"):
            await trio.to_thread.run_sync(schedule, -1.0, int)
        await trio.to_thread.run_sync(schedule, 60.0, int)
        with pytest.raises(TimerFull):
            await trio.to_thread.run_sync(schedule, 60.0, int)
    with pytest.raises(TimerError, match="closed"):
        await trio.to_thread.run_sync(schedule, 60.0, int)


def test_after_the_loop_has_ended_threads_are_refused() -> None:
    async def main() -> object:
        async with open_timer_service() as timers:
            return timers.from_threads.schedule

    schedule = trio.run(main)
    with pytest.raises(TimerError, match="has ended"):
        schedule(1.0, int)  # type: ignore[operator] # a verb
