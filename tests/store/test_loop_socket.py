"""Calls on the event loop: other tasks run while they wait, and time-outs and cancellations end the waits."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from presence.common.errors import StoreUnavailable
from presence.common.loop_calls import MAX_ITEMS_PER_TURN, let_others_run
from presence.common.runtime import LoopCaller
from presence.store.embedded import EmbeddedRedis
from presence.store.keys import Keys
from presence.store.loop_socket import LoopConnect, LoopSocket
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.support.no_threads import forbid_threads

PATIENCE_S = 10.0


@pytest.fixture
def pair() -> Iterator[tuple[LoopSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield LoopSocket(ours), theirs


def received(sock: LoopSocket, timeout_s: float | None = None) -> bytes:
    buffer = bytearray(10)
    sock.settimeout(timeout_s)
    return bytes(buffer[: sock.recv_into(buffer)])


async def test_other_tasks_run_while_a_call_waits(pair: tuple[LoopSocket, socket.socket]) -> None:
    ours, theirs = pair
    async with trio.open_nursery() as nursery:

        async def answer() -> None:
            theirs.sendall(b"answer")

        nursery.start_soon(answer)
        assert await LoopCaller().call(partial(received, ours)) == b"answer"


async def test_other_tasks_run_while_a_call_computes() -> None:
    steps: list[str] = []

    def compute() -> None:
        steps.append("first half")
        for _ in range(2):  # trio runs the tasks of a turn in any order
            let_others_run()
        steps.append("second half")

    async def other() -> None:
        steps.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await LoopCaller().call(compute)
    assert steps == ["first half", "other", "second half"]


async def test_other_tasks_run_while_a_long_answer_is_read(pair: tuple[LoopSocket, socket.socket]) -> None:
    ours, theirs = pair
    steps: list[str] = []
    items = 2 * MAX_ITEMS_PER_TURN  # trio runs the tasks of a turn in any order
    theirs.sendall(bytes(items + 1))

    def read() -> None:
        for _ in range(items):
            ours.recv_into(bytearray(1))
        steps.append("read")

    async def other() -> None:
        steps.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await LoopCaller().call(read)
    assert steps == ["other", "read"]


def test_a_call_in_a_thread_has_no_others_to_let_run() -> None:
    let_others_run()


async def test_a_wait_has_a_time_out(
    autojump_clock: MockClock, pair: tuple[LoopSocket, socket.socket]
) -> None:
    began = trio.current_time()
    with pytest.raises(TimeoutError):
        await LoopCaller().call(partial(received, pair[0], 2.0))
    assert trio.current_time() - began == pytest.approx(2.0)
    with pytest.raises(BlockingIOError):
        await LoopCaller().call(partial(received, pair[0], 0.0))


async def test_what_the_kernel_does_not_take_at_once_is_sent_later(
    pair: tuple[LoopSocket, socket.socket],
) -> None:
    ours, theirs = pair
    data, arrived = bytes(range(256)) * 8192, bytearray()

    def read_all() -> None:
        while len(arrived) < len(data):
            arrived.extend(theirs.recv(65_536))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read_all)
            await LoopCaller().call(lambda: ours.sendall(data))
    assert arrived == data


async def test_a_cancellation_is_raised_in_the_call(pair: tuple[LoopSocket, socket.socket]) -> None:
    cleaned_up = []

    def call() -> None:
        try:
            received(pair[0])
        finally:
            cleaned_up.append(True)

    with trio.move_on_after(0.01) as scope:
        await LoopCaller().call(call)
    assert (scope.cancelled_caught, cleaned_up) == (True, [True])


async def test_an_answer_is_read_after_lingering(
    autojump_clock: MockClock, pair: tuple[LoopSocket, socket.socket]
) -> None:
    ours, theirs = pair

    async def linger() -> None:
        await trio.sleep(5)
        theirs.sendall(b"late")

    began = trio.current_time()
    assert await LoopCaller().call(partial(received, ours), linger) == b"late"
    assert trio.current_time() - began == pytest.approx(5)


class Connecting:
    """A connection class that connects when it is told to."""

    def __init__(self) -> None:
        self.may_connect = threading.Event()
        self.sock, self.peer = socket.socketpair()

    def _connect(self) -> socket.socket:
        self.may_connect.wait(PATIENCE_S)
        return self.sock


class OnLoop(LoopConnect, Connecting):
    pass


async def test_a_connection_is_made_in_a_thread_and_closed_if_nobody_waits_for_it_any_more() -> None:
    connecting = OnLoop()
    connect: Callable[[], object] = connecting._connect
    with trio.move_on_after(0.01):
        await LoopCaller().call(connect)
    connecting.may_connect.set()
    connecting.peer.settimeout(PATIENCE_S)
    assert await trio.to_thread.run_sync(connecting.peer.recv, 1) == b""
    connecting.peer.close()


async def test_redis_is_unavailable_while_no_thread_can_connect(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(redis_server.url, Shape(Keys("threadless"), maxlen=1000, seen_retention_ms=10**13))
    with monkeypatch.context() as context:
        forbid_threads(context)
        with pytest.raises(StoreUnavailable, match="thread"):
            await LoopCaller().call(store.check_meta)
    await LoopCaller().call(store.check_meta)
    store.close()


def test_outside_of_the_loop_sockets_are_ordinary() -> None:
    connecting = OnLoop()
    connecting.may_connect.set()
    assert connecting._connect() is connecting.sock
    connecting.sock.close()
    connecting.peer.close()
