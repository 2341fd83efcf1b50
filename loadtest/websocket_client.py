"""WebSocket for clients of a load: requests, messages, and a client of a loop that may speak it.

A client's mask is 0, which costs the server as much as any other. The request and the login go out together.
"""

from typing import Final

from presence.loadtest.client_loop import LoopClient

BINARY: Final = 0x82
TEXT: Final = 0x81
REQUEST: Final = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
"""A request without its last line; a client of `presence.v1.json` needs no other."""
BINARY_REQUEST: Final = REQUEST + b"Sec-WebSocket-Protocol: presence.v1\r\n\r\n"

_OPCODE, _LENGTH = 0x0F, 0x7F
_FIRST_CONTROL_OPCODE = 8
_LONG, _LONGER = 126, 127  # lengths of two and of eight bytes follow


def message(first: int, payload: bytes) -> bytes:
    """Return a message of a client, of less than 64 KiB; `first`: `BINARY` or `TEXT`."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < _LONG else bytes([0x80 | _LONG]) + size.to_bytes(2, "big")
    return bytes([first]) + length + bytes(4) + payload


def messages(data: bytes) -> tuple[bytes, bytes]:
    """Return what is in the complete messages of a server together, and the bytes behind these."""
    found, start = [], 0
    while len(data) - start >= 2:
        size, body = data[start + 1] & _LENGTH, start + 2
        if size >= _LONG:
            more = 2 if size == _LONG else 8
            size, body = int.from_bytes(data[body : body + more], "big"), body + more
        if body + size > len(data):
            break
        if data[start] & _OPCODE < _FIRST_CONTROL_OPCODE:  # a close frame precedes the end of the connection
            found.append(data[body : body + size])
        start = body + size
    return b"".join(found), data[start:]


def behind_answer(data: bytes) -> bytes | None:
    """Return what follows the answer to the request; None while that is incomplete.

    Raises:
        ConnectionRefusedError: the server refuses.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None
    if not head.startswith(b"HTTP/1.1 101 "):
        raise ConnectionRefusedError(repr(head))
    return rest


class WebSocketClient(LoopClient):
    """A client whose connections are over WebSocket, in binary messages, if `over_websocket`."""

    over_websocket = False
    _is_accepted = False
    _received = b""  # not handled yet

    def on_connected(self) -> None:
        if self.over_websocket:
            self._is_accepted, self._received = False, b""
            super().send(BINARY_REQUEST)
        super().on_connected()

    def send(self, frame: bytes) -> None:
        super().send(message(BINARY, frame) if self.over_websocket else frame)

    def try_send(self, frame: bytes) -> bool:
        return super().try_send(message(BINARY, frame) if self.over_websocket else frame)

    def handle_data(self, data: bytes, now: float) -> None:
        if not self.over_websocket:
            super().handle_data(data, now)
            return
        self._received += data
        if not self._is_accepted:
            try:
                rest = behind_answer(self._received)
            except ConnectionRefusedError as error:
                self.connect_error = str(error)
                self.handle_disconnect(None, now)
                return
            if rest is None:
                return
            self._is_accepted, self._received = True, rest
        frames, self._received = messages(self._received)
        if frames:
            super().handle_data(frames, now)
