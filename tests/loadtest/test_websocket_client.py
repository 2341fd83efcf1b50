"""Clients of a load over WebSocket, against the library of the server."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from loadtest.websocket_client import BINARY, WebSocketClient, behind_answer, message, messages
from presence import protocol
from presence.loadtest.client_loop import ClientLoop
from presence.protocol import Kind

TIMEOUT_S = 5.0


class Recorder(WebSocketClient):
    """A client over WebSocket that notes what happens."""

    over_websocket = True

    def __init__(self, loop: ClientLoop) -> None:
        super().__init__(loop, "ann")
        self.reconnects = False
        self.seen: list[Any] = []

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.seen.append(payload["session"])

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        self.seen.append((kind, id))

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        self.seen.append(payload and payload["code"])


class Peer:
    """The server's end of the client's connection."""

    def __init__(self, loop: ClientLoop, client: Recorder, listener: socket.socket) -> None:
        self.loop, self.client = loop, client
        self._library = ServerProtocol(subprotocols=[Subprotocol("presence.v1")])
        client.connect()
        loop.run(TIMEOUT_S, lambda: bool(client.loop.connected_clients()) and not loop._opening)
        self.socket, _ = listener.accept()
        self.socket.settimeout(TIMEOUT_S)

    def read(self) -> list[Any]:
        """Return the next events."""
        self._library.receive_data(self.socket.recv(4096))
        return self._library.events_received()

    def accept(self) -> bytes:
        """Accept the request; return what the client sent behind it."""
        request, *frames = self.read()
        assert isinstance(request, Request)
        self._library.send_response(self._library.accept(request))
        self.socket.sendall(b"".join(self._library.data_to_send()))
        return b"".join(bytes(each.data) for each in frames)

    def wait_until_seen(self, *seen: object) -> None:
        assert self.loop.run(TIMEOUT_S, lambda: len(self.client.seen) == len(seen))
        assert self.client.seen == [*seen]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as listener, ClientLoop(listener.getsockname()) as loop:
        peer = Peer(loop, Recorder(loop), listener)
        with peer.socket:
            yield peer


def test_packets_go_in_binary_messages_which_may_come_in_pieces(peer: Peer) -> None:
    assert peer.accept() == protocol.encode(protocol.login("ann", id=1))
    granted = {"session": "s-1", "idle_timeout": 3.0, "keepalive": 1.0, "time_ms": 0, "v": 1}
    packets = (protocol.ok(1, **granted), protocol.ok(2, meta_of=["x" * 200]), protocol.ok(3))
    first, second, third = (protocol.encode(each) for each in packets)
    sent = b"".join(
        Frame(Opcode.BINARY, each).serialize(mask=False) for each in (first, second + third[:2], third[2:])
    )
    for start in range(0, len(sent), 50):
        peer.socket.sendall(sent[start : start + 50])
        peer.loop.run(0.01)
    peer.wait_until_seen("s-1", (Kind.OK, 2), (Kind.OK, 3))
    assert peer.client.try_send(protocol.KEEPALIVE)
    (keepalive,) = peer.read()
    assert (keepalive.opcode, bytes(keepalive.data)) == (Opcode.BINARY, protocol.KEEPALIVE)


def test_a_refused_request_is_a_connection_that_failed(peer: Peer) -> None:
    peer.socket.recv(4096)
    peer.socket.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    peer.wait_until_seen(None)
    assert "403" in peer.client.connect_error


@pytest.mark.parametrize("size", [0, 125, 126, 200, 65_535])
def test_messages_of_any_length_are_found(size: int) -> None:
    payload = bytes(size)
    frame = Frame(Opcode.BINARY, payload).serialize(mask=False)
    close = Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=False)
    assert messages(frame + close + frame[:1]) == (payload, frame[:1])
    masked = message(BINARY, payload)
    assert masked.endswith(payload)
    assert len(masked) == len(frame) + 4  # the mask


def test_what_follows_the_answer_to_the_request() -> None:
    assert behind_answer(b"HTTP/1.1 101 S\r\nA: b\r\n") is None
    assert behind_answer(b"HTTP/1.1 101 S\r\nA: b\r\n\r\n\x82") == b"\x82"
