"""The loop of clients: what ends one connection, or the thread that runs all."""

import math
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from presence.loadtest.client_loop import (
    COMMAND_TIMEOUT_S,
    NO_CONNECTION,
    ClientLoop,
    LoopClient,
    LoopThread,
)
from presence.loadtest.server_address import reset_on_close
from presence.protocol import Code
from tests.support.waiting import wait_for

TIMEOUT_S = 5.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.settimeout(TIMEOUT_S)
        yield found


def test_a_connection_that_is_reset_before_its_tls_handshake_ends_alone(listener: socket.socket) -> None:
    with ClientLoop(listener.getsockname(), sources=0) as loop:
        client = LoopClient(loop, "ann")
        client.context, client.reconnects = ssl.create_default_context(), False
        client.server_name = "localhost"
        client.connect()
        server, _ = listener.accept()
        loop.poller.poll(TIMEOUT_S, 1)  # it is open, and this is handled when it is reset
        reset_on_close(server)
        server.close()
        loop._finish_connect(client)
        assert client.fd == NO_CONNECTION
        assert client.connect_error.startswith("TLS: ")
        assert loop.endings == {0: 1}
        assert not loop.connected_clients()


@pytest.mark.parametrize(
    ("payload", "returns"),
    [
        ({"code": Code.SERVER_DRAIN}, True),
        ({"code": Code.KICKED}, False),
        ({"code": 777}, True),  # of a later version
        ({"code": 777, "reconnect": False}, False),
    ],
)
def test_a_client_returns_if_it_may(
    listener: socket.socket, payload: dict[str, object], returns: bool
) -> None:
    with ClientLoop(listener.getsockname(), sources=0) as loop:
        client = LoopClient(loop, "ann")
        client.connect()
        client.handle_disconnect(payload, 0.0)
        assert math.isfinite(loop.next_due_at) is returns


class DyingThread:
    """A thread of clients that dies by a fault of one."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.loop = ClientLoop(address, sources=0)
        self.thread = LoopThread(self.loop)

    def run(self, work: Callable[[], object]) -> None:
        """Do some work while the thread runs, which is about to die."""
        with self.thread:
            self.thread.call(lambda: self.loop.call_at(0.0, self._fail))
            work()

    def wait_until_dead(self) -> None:
        wait_for(lambda: not self.thread._thread.is_alive(), TIMEOUT_S)

    def call(self) -> None:
        while True:
            self.thread.call(lambda: None)

    def log_in(self) -> None:
        self.thread.connect_all([LoopClient(self.loop, "ann")], 10.0, COMMAND_TIMEOUT_S)

    def _fail(self) -> None:
        raise KeyError("a fault of a client")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.timeout(COMMAND_TIMEOUT_S / 2)
@pytest.mark.parametrize("work", ["call", "log_in", "wait_until_dead"])
def test_what_needs_a_thread_that_has_died_fails_immediately(listener: socket.socket, work: str) -> None:
    dying = DyingThread(listener.getsockname())
    with pytest.raises(RuntimeError, match=r"the clients' thread died: KeyError\('a fault of a client'\)"):
        dying.run(getattr(dying, work))
