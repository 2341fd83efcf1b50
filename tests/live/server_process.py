"""A real `presence serve` in a process of its own, as its users run it."""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence

import protocol
from loadtest.servers import PRESENCE
from loadtest.servers import PresenceServer as ServerProcess
from protocol import Packet
from tests.waiting import PATIENCE_S, wait_for

__all__ = ["Line", "ServerProcess", "pids", "running_server", "wait_for"]


@contextlib.contextmanager
def running_server(*flags: str, program: Sequence[str] = PRESENCE) -> Iterator[ServerProcess]:
    """Run a server for the length of a ``with`` block; it must end with status 0."""
    server = ServerProcess(*flags, program=program)
    try:
        yield server
    except BaseException:
        server.stop()
        raise
    assert server.stop() == 0, server.lines[-5:]


def pids(server: ServerProcess) -> dict[int, int]:
    """The newest process of each worker."""
    return server.workers()


class Line:
    """A connection on which one packet is waited for after the other.

    Args:
        address: of the server.
        context, name: of TLS, and of the certificate that is expected; None: plain TCP.
    """

    def __init__(
        self, address: tuple[str, int], context: ssl.SSLContext | None = None, name: str = ""
    ) -> None:
        self.sock = socket.create_connection(address, timeout=PATIENCE_S)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname=name)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)

    def answer(self) -> Packet:
        """Return the next packet."""
        while (found := self._decoder.next()) is None:
            data = self.sock.recv(4096)
            assert data, "closed without an answer"
            self._decoder.feed(data)
        return found

    def ask(self, packet: Packet) -> Packet:
        """Send a packet, and return what comes next."""
        self.sock.sendall(protocol.encode(packet))
        return self.answer()

    def beat(self) -> Packet:
        """Send a keepalive that is answered."""
        return self.ask(protocol.keepalive(2))

    def close(self) -> None:
        """Close it."""
        self.sock.close()
