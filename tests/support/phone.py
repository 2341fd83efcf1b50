"""A connection that a test drives by hand: sends the given packets, and waits for answers."""

import socket

from presence import protocol
from presence.protocol import Kind, Packet

TIMEOUT_S = 60.0  # time-outs of 5 s, on a machine that does other things


class Phone:
    """One connection: to where it is to connect, or over what is connected already."""

    def __init__(self, target: tuple[str, int] | socket.socket) -> None:
        self.socket = (
            target if isinstance(target, socket.socket) else socket.create_connection(target, TIMEOUT_S)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)

    def ask(self, packet: Packet) -> Packet:
        """Send a packet with an id; return its answer, or what ends the connection."""
        self.send(protocol.encode(packet))
        while (answer := self.next()).id != packet.id and answer.kind not in {Kind.ERROR, Kind.GOODBYE}:
            pass
        return answer

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self) -> Packet:
        while (packet := self._decoder.next()) is None:
            data = self.socket.recv(65536)
            assert data, "closed without an answer"
            self._decoder.feed(data)
        return packet

    def send_keepalive(self) -> Packet:
        return self.ask(protocol.keepalive(2))

    def read_to_end(self) -> None:
        while self.socket.recv(65536):
            pass
        self.close()

    def close(self) -> None:
        self.socket.close()
