"""A WebSocket client for tests: a trio stream of the bytes in its messages, over TCP or TLS."""

from contextlib import suppress

import trio
from trio.abc import Stream
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from presence.transports.websocket import MAX_MESSAGE_BYTES


class WebSocketStream(Stream):
    """A stream of frames in binary messages.

    Attributes:
        close: the close frame that came last.
    """

    def __init__(self, transport_stream: Stream, *, subprotocol: str | None = "presence.v1") -> None:
        self.transport_stream = transport_stream
        self.subprotocol = subprotocol
        self.close: Close | None = None
        self._frames: list[Frame] = []  # received, for `receive_text`
        self._library = ClientProtocol(
            parse_uri("ws://127.0.0.1/"),
            subprotocols=None if subprotocol is None else [Subprotocol(subprotocol)],
        )

    async def shake(self, origin: str | None = None) -> Response:
        """Send the request; return the answer."""
        if origin is not None:
            self._library.origin = Origin(origin)
        self._library.send_request(self._library.connect())
        await self.transport_stream.send_all(b"".join(self._library.data_to_send()))
        while not (events := self._library.events_received()):
            self._library.receive_data(await self.transport_stream.receive_some(4096))
        response = events[0]
        assert isinstance(response, Response)
        return response

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        parts = [data[start : start + MAX_MESSAGE_BYTES] for start in range(0, len(data), MAX_MESSAGE_BYTES)]
        frames = (Frame(Opcode.BINARY, bytes(part)).serialize(mask=True) for part in parts)
        await self.transport_stream.send_all(b"".join(frames))

    async def send_text(self, text: str) -> None:
        await self.send_frame(Frame(Opcode.TEXT, text.encode()))

    async def send_frame(self, frame: Frame) -> None:
        """Send any frame, whatever came before."""
        await self.transport_stream.send_all(frame.serialize(mask=True))

    async def receive_frames(self) -> list[Frame]:
        """Return the next frames but close frames; none at the end of the stream."""
        while True:
            frames = []
            for each in self._library.events_received():
                assert isinstance(each, Frame)
                if each.opcode is Opcode.CLOSE:
                    self.close = self._library.close_rcvd
                else:
                    frames.append(each)
            if frames:
                return frames
            data = b""
            with suppress(trio.BrokenResourceError):  # closed before the server read all
                data = bytes(await self.transport_stream.receive_some(4096))
            if not data:
                return []
            self._library.receive_data(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return b"".join(bytes(each.data) for each in await self.receive_frames())

    async def receive_text(self) -> str:
        """Return the next message, which is one frame; an empty text at the end of the stream."""
        if not self._frames:
            self._frames = await self.receive_frames()
        return bytes(self._frames.pop(0).data).decode() if self._frames else ""

    async def wait_send_all_might_not_block(self) -> None:
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.transport_stream.aclose()


def masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Return a frame of a client, whatever its opcode."""
    head = bytes([0x80 * fin | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    else:
        head += b"\xfe" + len(payload).to_bytes(2, "big")
    return head + bytes(4) + payload
