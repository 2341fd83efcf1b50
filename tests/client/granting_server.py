"""A server with real sockets that grants everything, for clients in threads."""

import socket
import threading

from presence import protocol
from presence.protocol import Kind, Packet
from tests.client.machine_driver import login_ok

PATIENCE_S = 30.0


class GrantingServer:
    """Grants everything, one connection after the other, and records what it receives."""

    def __init__(self) -> None:
        self.received: list[Packet] = []
        self.packet_arrived = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                self._converse(sock)

    def _converse(self, sock: socket.socket) -> None:
        decoder = protocol.Decoder()
        while data := sock.recv(4096):
            decoder.feed(data)
            while (packet := decoder.next()) is not None:
                with self.packet_arrived:
                    self.received.append(packet)
                    self.packet_arrived.notify_all()
                if packet.kind == Kind.LOGIN:
                    sock.sendall(protocol.encode(login_ok(keepalive=0.1)))
                elif packet.id is not None:
                    sock.sendall(protocol.encode(protocol.ok(packet.id)))

    def tokens(self, kind: Kind, count: int) -> list[object]:
        """Return the tokens of the packets of a kind, once there are that many."""

        def found() -> list[object]:
            return [packet.payload.get("token") for packet in self.received if packet.kind == kind]

        with self.packet_arrived:
            assert self.packet_arrived.wait_for(lambda: len(found()) >= count, PATIENCE_S), self.received
            return found()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)
