"""The timer service's door for other threads: real threads, a real clock, and short delays."""

import contextlib
import threading
import time
from collections.abc import Callable

import pytest
import trio

from presence.timers.inbox import Inbox
from presence.timers.interface import TimerError, TimerFull
from presence.timers.service import open_timer_service

LIMIT_S = 20.0  # a machine under load


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not true():  # noqa: ASYNC110 # threads tell nobody
            await trio.sleep(0.001)


async def test_threads_schedule_and_all_fires_once_and_none_early() -> None:
    fired: list[tuple[int, float]] = []
    count, threads = 500, 4

    async with open_timer_service() as timers:

        def schedule(thread: int) -> None:
            for n in range(count):
                asked = time.perf_counter()
                timers.from_threads.schedule(
                    0.02,
                    lambda key, at: fired.append((key, time.perf_counter() - at)),
                    thread * count + n,
                    asked,
                )

        async with trio.open_nursery() as nursery:
            for number in range(threads):
                nursery.start_soon(trio.to_thread.run_sync, schedule, number)
        await until(lambda: len(fired) == count * threads)
        assert timers.statistics().pending == 0
    assert sorted(key for key, _ in fired) == list(range(count * threads))
    assert min(after_s for _, after_s in fired) >= 0.02


async def test_a_thread_is_told_whether_a_timer_will_not_fire() -> None:
    fired: list[str] = []
    async with open_timer_service() as timers:
        soon = timers.schedule(0.0, fired.append, "soon")
        await until(lambda: bool(fired))
        late = timers.schedule(60.0, fired.append, "late")
        cancel = timers.from_threads.cancel
        assert await trio.to_thread.run_sync(lambda: [cancel(soon), cancel(late), cancel(late)]) == [
            False,
            True,
            False,
        ]
        assert timers.statistics().cancelled == 1
    assert fired == ["soon"]


async def test_what_a_thread_schedules_and_cancels_at_once_does_not_fire() -> None:
    fired: list[str] = []
    async with open_timer_service() as timers:

        def change_of_mind() -> None:
            for _ in range(50):
                timers.from_threads.cancel_soon(timers.from_threads.schedule(0.0, fired.append, "no"))
            assert timers.from_threads.cancel(timers.from_threads.schedule(0.01, fired.append, "no"))
            timers.from_threads.schedule(0.0, fired.append, "yes")

        await trio.to_thread.run_sync(change_of_mind)
        await until(lambda: bool(fired) and timers.statistics().cancelled == 51)  # in either order
        assert timers.statistics().pending == 0
    assert fired == ["yes"]


async def test_the_loop_cancels_what_a_thread_has_just_scheduled() -> None:
    fired: list[str] = []
    async with open_timer_service() as timers:
        thread = threading.Thread(
            target=lambda: handles.append(timers.from_threads.schedule(0.0, fired.append, "no"))
        )
        handles: list[object] = []
        thread.start()
        thread.join()  # the loop had no turn: the order is in the inbox
        assert timers.cancel(handles[0])  # type: ignore[arg-type] # from a list of a thread
        assert timers.statistics().cancelled == 1
        await until(lambda: timers.statistics().pending == 0)  # as soon as the service reads its inbox
    assert fired == []


async def test_a_closed_service_takes_nothing_from_threads() -> None:
    async with open_timer_service() as timers:
        pass
    with pytest.raises(TimerError, match="closed"):
        await trio.to_thread.run_sync(timers.from_threads.schedule, 0.0, int)


def test_one_bell_tells_of_many_orders() -> None:
    rings: list[int] = []
    inbox: Inbox[int] = Inbox(lambda: rings.append(1))
    for order in range(10):
        inbox.put(order)
    assert len(rings) == 1
    assert inbox.take(7) + inbox.take(7) == list(range(10))
    inbox.put(10)
    assert len(rings) == 1, "the reader has not yet found it empty"
    assert [inbox.take(7), inbox.take(7)] == [[10], []]
    inbox.put(11)
    assert len(rings) == 2


def test_a_full_inbox_refuses_and_counts() -> None:
    inbox: Inbox[int] = Inbox(lambda: None, capacity=2)
    inbox.put(1)
    inbox.put(2)
    with pytest.raises(TimerFull):
        inbox.put(3)
    assert (inbox.take(9), inbox.refused) == ([1, 2], 1)


async def test_the_bound_of_timers_holds_for_threads_too() -> None:
    async with open_timer_service(pending_max=10) as timers:

        def schedule_many() -> int:
            done = 0
            with contextlib.suppress(TimerFull):
                for _ in range(1000):
                    timers.from_threads.schedule(60.0, int)
                    done += 1
            return done

        taken = await trio.to_thread.run_sync(schedule_many)
        assert 10 <= taken <= 30, "rough, by what the loop is taking just then"
        await until(lambda: timers.statistics().pending == taken)
        assert await trio.to_thread.run_sync(schedule_many) == 0


async def test_a_full_service_still_cancels_for_threads() -> None:
    async with open_timer_service(pending_max=1) as timers:
        handle = timers.schedule(60.0, int)
        await trio.to_thread.run_sync(timers.from_threads.cancel_soon, handle)
        await until(lambda: timers.statistics().cancelled == 1)
