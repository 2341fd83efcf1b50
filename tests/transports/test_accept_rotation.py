"""The accept rotation: which listener of a shared port gets a connection."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import trio

from presence.common.clock import Clock
from presence.transports import accept_rotation, sockets
from presence.transports.accept_rotation import CROWD, PERIOD_S, ROUND_S, AcceptRotation
from tests.support.no_threads import forbid_threads
from tests.support.waiting import WAIT_TIMEOUT_S, until

CONNECTIONS = 40  # by chance all at one of two listeners: once in 2**39


@contextmanager
def listening(number: int) -> Iterator[list[socket.socket]]:
    """Open listeners that share a port."""
    reserved = sockets.reserve("127.0.0.1", 0)
    port = reserved[0].getsockname()[1]
    found = [*reserved]
    for _ in range(number):
        found += sockets.open_listeners("127.0.0.1", port, shared=True)
    try:
        yield found[1:]
    finally:
        for each in found:
            each.close()


def connect(listeners: list[socket.socket]) -> list[int]:
    """Open connections, and return how many each listener got."""
    for _ in range(CONNECTIONS):
        socket.create_connection(listeners[0].getsockname()).close()
    return [accept_all(each) for each in listeners]


def accept_all(listener: socket.socket) -> int:
    listener.setblocking(False)
    accepted = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return accepted
        accepted += 1


def test_the_listener_of_the_index_gets_all_connections() -> None:
    with listening(3) as listeners:
        for index in (1, 0, 2):
            accept_rotation.attach(listeners[0], index)
            assert connect(listeners)[index] == CONNECTIONS


def test_an_index_without_a_listener_lets_the_kernel_choose() -> None:
    with listening(2) as listeners:
        accept_rotation.attach(listeners[0], 1)
        accept_rotation.attach(listeners[0], 2)
        assert all(connect(listeners))


def test_the_index_of_a_closed_listener_goes_to_another() -> None:
    with listening(2) as listeners:
        accept_rotation.attach(listeners[0], 1)
        listeners.pop().close()
        assert connect(listeners) == [CONNECTIONS]


async def test_workers_get_connections_in_rotation(nursery: trio.Nursery) -> None:
    with listening(2) as listeners:
        for number in range(2):
            nursery.start_soon(AcceptRotation([listeners[number]], number, 2, Clock()).run)
        await trio.sleep(3 * PERIOD_S)
        got = [0, 0]
        for _ in range(48):
            sock = socket.create_connection(listeners[0].getsockname())
            got = [each + accept_all(listener) for each, listener in zip(got, listeners, strict=True)]
            sock.close()
            await trio.sleep(PERIOD_S / 8)
        assert min(got) > 10  # of 48, in six periods
        nursery.cancel_scope.cancel()


async def test_a_crowd_is_left_to_the_kernel(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept_rotation, "PERIOD_S", 1000.0)
    monkeypatch.setattr(accept_rotation, "ROUND_S", 2000.0)
    with listening(2) as listeners:
        accept_rotation.attach(listeners[0], 0)
        own = AcceptRotation([listeners[0]], 0, 2, Clock())
        nursery.start_soon(own.run)
        own.note_accepted(CROWD - 1)
        await trio.sleep(PERIOD_S)
        assert connect(listeners) == [CONNECTIONS, 0]
        own.note_accepted(CROWD)
        await trio.sleep(PERIOD_S)
        assert all(connect(listeners))
        nursery.cancel_scope.cancel()


async def test_the_rotation_outlives_a_lack_of_threads(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(2) as listeners:
        with monkeypatch.context() as context:
            forbid_threads(context)
            nursery.start_soon(AcceptRotation([listeners[0]], 0, 1, Clock()).run)
            await trio.sleep(2 * PERIOD_S)
        await until(lambda: connect(listeners) == [CONNECTIONS, 0], look_s=PERIOD_S)
        nursery.cancel_scope.cancel()


async def test_the_rotation_outlives_a_lack_of_memory_in_the_kernel(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, refused, attached = accept_rotation.attach, 0, trio.Event()

    def scarce(listener: socket.socket, index: int) -> None:
        nonlocal refused
        if not refused:
            refused += 1
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        attach(listener, index)
        trio.from_thread.run_sync(attached.set)

    monkeypatch.setattr(accept_rotation, "attach", scarce)
    with listening(2) as listeners, trio.fail_after(WAIT_TIMEOUT_S):
        nursery.start_soon(AcceptRotation([listeners[0]], 0, 1, Clock()).run)
        await attached.wait()
        nursery.cancel_scope.cancel()


async def test_without_a_shared_port_there_is_no_rotation() -> None:
    (listener,) = sockets.open_listeners("127.0.0.1", 0)
    with listener, trio.fail_after(10 * PERIOD_S):
        await AcceptRotation([listener], 0, 1, Clock()).run()


def test_every_worker_has_its_period_in_a_round() -> None:
    now = 1000.0
    clock = Clock(monotonic=lambda: now, wall=lambda: 0.0)
    for workers in (2, 8, 54):
        period_s = min(PERIOD_S, ROUND_S / workers)
        begins = sorted(
            now + AcceptRotation([], number, workers, clock).next_period_s() for number in range(workers)
        )
        assert [b - a for a, b in pairwise(begins)] == pytest.approx([period_s] * (workers - 1))
        assert now < begins[0] <= now + period_s + 1e-9
