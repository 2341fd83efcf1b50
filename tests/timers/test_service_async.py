"""Async callbacks of the timer service: tasks of their own, bounded, and none is lost."""

import trio
from trio.testing import MockClock

from presence.timers.service import open_timer_service


class Work:
    """An async callback that takes a second, and counts how many run at once."""

    def __init__(self) -> None:
        self.running = self.most = self.done = 0

    async def __call__(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await trio.sleep(1.0)
        self.running -= 1
        self.done += 1


async def test_at_the_bound_async_callbacks_wait_and_none_is_lost(autojump_clock: MockClock) -> None:
    work, fired = Work(), trio.Event()
    async with open_timer_service(async_max=3, pending_max=11) as timers:
        handles = timers.schedule_many((0.01, work) for _ in range(10))
        timers.schedule(0.02, fired.set)
        with trio.fail_after(0.5):
            await fired.wait()  # plain callbacks do not wait for async ones
        figures = timers.statistics()
        assert (figures.running, figures.held, figures.pending) == (3, 7, 7)
        assert not any(timers.cancel(handle) for handle in handles), "all have begun"
        await trio.sleep(10)
        figures = timers.statistics()
        assert (figures.running, figures.held, figures.pending) == (0, 0, 0)
    assert (work.most, work.done) == (3, 10)


async def test_an_error_of_an_async_callback_harms_nobody(autojump_clock: MockClock) -> None:
    told: list[str] = []
    work = Work()

    async def fail() -> None:
        await trio.sleep(0.1)
        raise ValueError("late")

    async with open_timer_service(async_max=1, on_error=lambda error, _: told.append(str(error))) as timers:
        timers.schedule_many([(0.01, fail), (0.01, work)])
        await trio.sleep(3)
        assert timers.statistics().errors == 1
    assert told == ["late"]
    assert work.done == 1


async def test_a_cancellation_beside_an_error_is_let_through(autojump_clock: MockClock) -> None:
    told: list[str] = []

    async def fail_at_the_end() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it ended")

    async with open_timer_service(on_error=lambda error, _: told.append(repr(error))) as timers:
        timers.schedule(0.01, fail_at_the_end)
        await trio.sleep(1)
    assert len(told) == 1
    assert "while it ended" in told[0]


async def test_one_that_ends_after_the_block_starts_nobody_from_the_line(autojump_clock: MockClock) -> None:
    errors: list[Exception] = []
    begun: list[str] = []

    async def stubborn() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(1.0)

    async def next_one() -> None:
        begun.append("after the end")

    async with open_timer_service(async_max=1, on_error=lambda error, _: errors.append(error)) as timers:
        timers.schedule_many([(0.01, stubborn), (0.01, next_one)])
        await trio.sleep(0.5)
    assert (errors, begun, timers.statistics().pending) == ([], [], 1)
