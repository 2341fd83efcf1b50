"""Clients of a scripted run: each does one thing at a time, and knows when the server has taken it."""

import socket
from typing import Any

import protocol
from protocol import Kind, Packet

PATIENCE_S = 30.0


class Phone:
    """One connection, logged in if it has a `uid`."""

    def __init__(self, address: tuple[str, int], uid: str = "", **login: Any) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = protocol.Decoder(protocol.SERVER_FRAME_LIMIT_BYTES)
        if uid:
            answer = self.ask(protocol.login(uid, id=1, **login))
            assert answer.kind == Kind.OK, answer

    def ask(self, packet: Packet) -> Packet:
        """Send a packet with an id; return what answers it."""
        self.send(protocol.encode(packet))
        while (answer := self.next()).id != packet.id:
            pass
        return answer

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def next(self) -> Packet:
        while (packet := self._decoder.next()) is None:
            data = self._socket.recv(65536)
            assert data, "closed"
            self._decoder.feed(data)
        return packet

    def end(self) -> None:
        """Read until the server closes."""
        while self._socket.recv(65536):
            pass
        self.close()

    def close(self) -> None:
        self._socket.close()
