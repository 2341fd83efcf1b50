"""The epoll transport by the clock: time-outs, turns, and life without descriptors."""

import errno
import gc
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import structlog
import trio

from presence import protocol
from presence.protocol import Code, Kind, Other
from presence.transports import epoll_transport
from presence.transports.connection_states import LatencyClass
from presence.transports.limits import Limits
from tests.support.state_table import AT_TRANSPORT, Cell, brief
from tests.transports.harness import serving
from tests.transports.test_connections import try_cell
from tests.transports.test_epoll_transport import class_of, many


@pytest.mark.parametrize("cell", [cell for cell in AT_TRANSPORT if cell[1] is Other.LOGIN_TIMEOUT], ids=str)
async def test_the_time_to_log_in_over_tls(cell: Cell) -> None:
    await try_cell("tls", cell)


async def test_who_shakes_hands_and_is_silent_is_told_so_over_streams_too() -> None:
    async with serving("tls stream", Limits(login_timeout=2.0)) as server:
        client = await server.connect()
        assert [brief(each) for each in await client.rest()] == [(Kind.ERROR, None, Code.LOGIN_TIMEOUT)]
        assert server.counted.login_timeouts == 1


async def test_a_window_longer_than_t_ends_nobody_who_beats() -> None:
    async with serving("epoll", idle_timeout=0.5, window_s=1.2) as server:
        client = await server.logged_in()
        for _ in range(20):
            await client.stream.send_all(protocol.KEEPALIVE)
            await trio.sleep(0.1)
        assert server.ends() == []
        assert server.engine.statistics().saved_by_poll > 0


@contextmanager
def no_descriptor_left() -> Iterator[list[int]]:
    """Use up the lowered limit of descriptors; closing what is yielded frees one.

    The garbage collector frees none meanwhile: connections of redis-py and urllib3 that earlier tests left in
    reference cycles close when they are collected.
    """
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    descriptors: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
        with suppress(OSError):
            while True:
                descriptors.append(os.open("/dev/null", os.O_RDONLY))
        yield descriptors
    finally:
        gc.enable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in descriptors:
            os.close(fd)


async def test_without_descriptors_connections_live_on_and_accepting_resumes() -> None:
    async with serving("epoll") as server:
        established = await many(server, 20)
        late = socket.socket()
        with structlog.testing.capture_logs() as logs, no_descriptor_left() as descriptors:
            with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
                socket.socket()
            started = trio.current_time()
            late.connect(server.address)
            late.sendall(protocol.encode(protocol.login("late")))
            while trio.current_time() - started < 2.5:
                for client in established:
                    await client.beat()
                await trio.sleep(0.05)
            errors = server.counted.accept_errors
            assert len(server.registry) == 20
            while descriptors:
                os.close(descriptors.pop())
            await server.until(lambda: len(server.registry) == 21, 1.0)
        assert 2 <= errors <= 15, "it rests between two attempts"
        assert [each["event"] for each in logs] == ["accept failed"] * len(logs)
        assert 1 <= len(logs) <= 3
        for client in established:
            await client.beat()
        late.close()


# Longer than the product's, so that no pause of this machine is taken for one of them.
LONG_ANSWER_WINDOW_S = 0.25


@pytest.fixture
def long_answer_window(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(epoll_transport, "ANSWER_WINDOW_S", LONG_ANSWER_WINDOW_S)
    return LONG_ANSWER_WINDOW_S


async def test_an_answered_keepalive_waits_shortly_and_who_sends_more_is_served_at_once(
    long_answer_window: float,
) -> None:
    async with serving("epoll", window_s=60.0) as server:
        client = await server.logged_in()
        message = protocol.encode(protocol.message("bob", "hello", id=1))
        for packet, latency_class, most_s in (
            (protocol.encode(protocol.keepalive(1)), LatencyClass.SHORT, 2 * long_answer_window),
            (message, LatencyClass.IMMEDIATE, long_answer_window / 2),
        ):
            waits = []
            for _ in range(9):
                started = time.perf_counter()
                await client.stream.send_all(packet)
                await client.take(1)
                waits.append(time.perf_counter() - started)
                assert class_of(server) == latency_class
            assert sorted(waits[1:])[4] < most_s


async def test_the_patient_wait_less_while_some_of_them_want_answers(long_answer_window: float) -> None:
    window_s = 8 * long_answer_window
    async with serving("epoll", window_s=window_s) as server:
        clients = await many(server, 8)
        await clients[0].stream.send_all(protocol.KEEPALIVE)
        await trio.sleep(0.05)  # the first batch is read: from now on the set rests
        waits = []
        for client in clients:
            started = time.perf_counter()
            await client.beat()  # its first answered one, from the patient set
            waits.append(time.perf_counter() - started)
        assert waits[0] > window_s / 2
        assert sorted(waits[1:])[3] < window_s / 4
