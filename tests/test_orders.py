"""What a worker hears from its supervisor, and makes of signals of its own."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest
import trio

from presence import orders
from presence.orders import Orders

PATIENCE_S = 20.0


class Line:
    """Both ends of a line, and how often files were to be read again."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.worker = Orders(self.theirs)
        self.reloads = 0

    def reload(self) -> None:
        self.reloads += 1

    async def reloaded(self, times: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self.reloads < times:  # noqa: ASYNC110 - real signals, no event to wait for
                await trio.sleep(0.01)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    with line.ours, line.theirs:
        yield line


async def test_files_are_read_again_as_often_as_it_is_told_before_it_drains(line: Line) -> None:
    async with line.worker.orders(line.reload) as told:
        line.ours.send(orders.RELOAD + orders.RELOAD)
        await line.reloaded(2)
        line.ours.send(orders.DRAIN + orders.RELOAD + orders.END)
        with trio.fail_after(PATIENCE_S):
            await anext(told)
            await anext(told)
    assert line.reloads == 2, "whoever drains has no use for it"


async def test_a_worker_whose_successor_is_at_work_is_told_so_before_it_drains(line: Line) -> None:
    retired: list[None] = []
    async with line.worker.orders(line.reload, lambda: retired.append(None)) as told:
        line.ours.send(orders.RETIRE)
        with trio.fail_after(PATIENCE_S):
            await anext(told)
    assert retired


async def test_a_hangup_signal_is_no_order_to_drain(line: Line) -> None:
    async with line.worker.orders(line.reload) as told:
        os.kill(os.getpid(), signal.SIGHUP)
        await line.reloaded(1)
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(PATIENCE_S):
            await anext(told)


async def test_who_has_no_files_leaves_the_hangup_signal_alone(line: Line) -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with line.worker.orders():
        assert signal.getsignal(signal.SIGHUP) is before
        line.ours.send(orders.RELOAD + orders.DRAIN)
