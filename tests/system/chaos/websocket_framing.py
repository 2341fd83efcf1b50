"""Packets over WebSocket, for clients with sockets of their own: without I/O."""

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol
from websockets.uri import parse_uri


class WebSocketFraming:
    """The client's side of one connection."""

    def __init__(self) -> None:
        subprotocols = [Subprotocol("presence.v1")]
        self._library = ClientProtocol(parse_uri("ws://127.0.0.1/"), subprotocols=subprotocols)

    def request(self) -> bytes:
        """Return the request that opens the connection; messages may follow before its answer."""
        self._library.send_request(self._library.connect())
        return b"".join(self._library.data_to_send())

    @staticmethod
    def wrap(data: bytes) -> bytes:
        """Return a message with these packets."""
        return Frame(Opcode.BINARY, data).serialize(mask=True)

    def unwrap(self, data: bytes) -> bytes:
        """Return the packets in the messages that are now complete."""
        self._library.receive_data(data)
        frames = (each for each in self._library.events_received() if isinstance(each, Frame))
        return b"".join(bytes(each.data) for each in frames if each.opcode is Opcode.BINARY)
