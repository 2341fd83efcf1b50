"""Commands from the supervisor, and signals to the worker itself."""

import math
import os
import selectors
import signal
import socket
from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.testing

from presence.prefork import arbiter, control_pipe
from presence.prefork.control_pipe import FIRST_TIMEOUT_S, ControlPipe, SilenceWatch, interval_s

PATIENCE_S = 20.0


class Line:
    """Both ends of the pipe, and the number of reloads."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.worker = ControlPipe(self.theirs)
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


async def test_each_reload_before_a_drain_reads_files_again(line: Line) -> None:
    async with line.worker.stop_requests(line.reload) as requests:
        line.ours.send(control_pipe.RELOAD + control_pipe.RELOAD)
        await line.reloaded(2)
        line.ours.send(control_pipe.DRAIN + control_pipe.RELOAD + control_pipe.END)
        with trio.fail_after(PATIENCE_S):
            await anext(requests)
            await anext(requests)
    assert line.reloads == 2, "a draining worker ignores it"


async def test_retire_is_called_before_a_worker_with_a_successor_drains(line: Line) -> None:
    retired: list[None] = []
    async with line.worker.stop_requests(line.reload, lambda: retired.append(None)) as requests:
        line.ours.send(control_pipe.RETIRE)
        with trio.fail_after(PATIENCE_S):
            await anext(requests)
    assert retired


@pytest.mark.parametrize(("told", "events"), [(False, ["supervisor is gone, draining"]), (True, [])])
async def test_a_worker_that_loses_its_supervisor_says_so_and_drains(
    line: Line, *, told: bool, events: list[str]
) -> None:
    with structlog.testing.capture_logs() as lines, trio.fail_after(PATIENCE_S):
        async with line.worker.stop_requests(line.reload) as requests:
            if told:
                line.ours.send(control_pipe.DRAIN)
                await anext(requests)
            line.ours.close()
            if told:
                await trio.testing.wait_all_tasks_blocked(0.05)
            else:
                await anext(requests)
    assert [each["event"] for each in lines] == events


async def test_sighup_does_not_drain(line: Line) -> None:
    async with line.worker.stop_requests(line.reload) as requests:
        os.kill(os.getpid(), signal.SIGHUP)
        await line.reloaded(1)
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.fail_after(PATIENCE_S):
            await anext(requests)


async def test_worker_without_files_leaves_sighup_alone(line: Line) -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with line.worker.stop_requests():
        assert signal.getsignal(signal.SIGHUP) is before
        line.ours.send(control_pipe.RELOAD + control_pipe.DRAIN)


# Silence


TIMEOUT_S = 40.0  # longer than a start may take


def hangs_found(watch: SilenceWatch, begin: float, end: float) -> list[float]:
    """Check at each interval; return the times at which it was found to hang."""
    times = [begin + n * interval_s(TIMEOUT_S) for n in range(1, math.ceil(end - begin) + 1)]
    return [now for now in times if watch.is_hung(now)]


def test_silence_longer_than_the_timeout_after_a_heartbeat_is_a_hang() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    assert not hangs_found(watch, 0.0, TIMEOUT_S - 1)
    watch.heartbeat()
    now = TIMEOUT_S - 1
    assert not hangs_found(watch, now, now + TIMEOUT_S)
    assert hangs_found(watch, now + TIMEOUT_S, now + 2 * TIMEOUT_S)[0] <= now + TIMEOUT_S + 2 * interval_s(
        TIMEOUT_S
    )


def test_pause_of_the_watcher_is_no_silence() -> None:
    watch = SilenceWatch(TIMEOUT_S, 0.0)
    watch.heartbeat()
    assert not watch.is_hung(1.0)
    assert not watch.is_hung(10_000.0)
    assert not hangs_found(watch, 10_000.0, 10_000.0 + TIMEOUT_S - 5)


def test_starting_process_has_time_to_load_its_modules() -> None:
    watch = SilenceWatch(1.0, 0.0)
    assert not any(watch.is_hung(n / 10) for n in range(int(FIRST_TIMEOUT_S) * 10))
    watch.heartbeat()
    assert any(watch.is_hung(FIRST_TIMEOUT_S + n / 10) for n in range(20))


def test_each_signal_is_returned_once_and_wakes() -> None:
    with selectors.DefaultSelector() as selector, arbiter.SignalPipe(selector, reloads=True) as signal_pipe:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
            assert selector.select(0)
            assert signal_pipe.take() == bytes([signal.SIGHUP])
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert signal_pipe.take() == bytes([signal.SIGTERM] * 2)
        assert signal_pipe.take() == b""
