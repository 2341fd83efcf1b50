"""The WebSocket protocol of a connection after its request: received bytes to frames of presence and back.

    wire -> WebSocket frames -> messages -> frames      `receive`
    frames -> one message, or one for each packet       `encode`

With ``presence.v1`` the binary messages carry the byte stream of frames, cut anywhere. With
``presence.v1.json`` each text message is a packet.

The library passes a WebSocket frame on when all of it is here, so at most `MAX_MESSAGE_BYTES` wait in it.
Frames that cannot hold a packet, as pings, are counted, because they cost as much as those that do.

Tests: `tests/transports/test_websocket.py`.
"""

from collections.abc import Iterator
from typing import Final, cast

from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol

from presence import protocol
from presence.core.authenticator import Refusal
from presence.core.engine import Engine
from presence.core.registry import Client, Session
from presence.protocol import FRAME_LIMIT_BYTES, HEADER_BYTES, Code, Kind
from presence.transports.limits import MAX_GUEST_FRAMES
from presence.transports.websocket_head import SILENT
from presence.transports.websocket_text import BadText, to_frame, to_text

MAX_MESSAGE_BYTES: Final = HEADER_BYTES + FRAME_LIMIT_BYTES
PRIVATE_CODES: Final = 4000  # close codes from here on are for applications: the last packet's code is added
MAX_REASON_BYTES: Final = 123  # RFC 6455, section 5.5
_SMALLEST_PACKET_BYTES = {False: len(protocol.KEEPALIVE), True: len("[3]")}  # by whether it is JSON


class WebSocket:
    """A WebSocket connection whose request was accepted.

    Args:
        is_json: whether packets are JSON texts.

    Attributes:
        output: pongs to send.
        has_ended: whether nothing more is received: the client has closed, or broken a rule.
        refusal: what the client is told if it has broken a rule; None: it has not.
        frames: WebSocket frames received so far.
        idle_frames: those of them that cannot hold a packet, and are not counted by `excess`.
    """

    __slots__ = (
        "_close",
        "_is_json",
        "_library",
        "_text",
        "frames",
        "has_ended",
        "idle_frames",
        "output",
        "refusal",
    )

    def __init__(self, *, is_json: bool) -> None:
        self._library = Protocol(SERVER, max_size=MAX_MESSAGE_BYTES, logger=SILENT)
        self._is_json = is_json
        self._text = b""  # the received part of a fragmented message
        self._close = b""  # the close frame to send at the end; empty while nothing says that it ends
        self.output = b""
        self.has_ended = False
        self.refusal: Refusal | None = None
        self.frames = 0
        self.idle_frames = 0

    def receive(self, data: bytes) -> bytes:
        """Return the frames, or pieces of them, in what these bytes complete."""
        library, frames = self._library, b""
        library.receive_data(data)
        received = cast("list[Frame]", library.events_received())  # it has no other events after a request
        self.frames += len(received)
        for frame in received:
            if len(frame.data) < _SMALLEST_PACKET_BYTES[self._is_json] or frame.opcode >= Opcode.CLOSE:
                self.idle_frames += 1
            if frame.opcode < Opcode.CLOSE and not self.has_ended:
                frames += self._of_text(frame) if self._is_json else self._of_binary(frame)
        if (writes := library.data_to_send()) and not self.has_ended:
            self._library_said(writes)
        return frames

    def _of_binary(self, frame: Frame) -> bytes:
        if frame.opcode is Opcode.TEXT:
            self._fail(CloseCode.UNSUPPORTED_DATA, "a text message, and presence.v1 has binary ones")
            return b""
        return bytes(frame.data)

    def _of_text(self, frame: Frame) -> bytes:
        if frame.opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED_DATA, "a binary message, and presence.v1.json has text")
            return b""
        self._text += frame.data
        if not frame.fin:
            return b""
        text, self._text = self._text, b""
        try:
            return to_frame(text.decode())
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "a text message is not UTF-8")
        except BadText as error:
            self._fail(PRIVATE_CODES + Code.PROTOCOL_ERROR, str(error))
        return b""

    def _library_said(self, writes: list[bytes]) -> None:
        library = self._library
        if library.state is OPEN:
            self.output += b"".join(writes)
            return
        *pongs, self._close, _end = writes
        self.output += b"".join(pongs)
        self.has_ended = True
        if library.close_rcvd is None and (sent := library.close_sent) is not None:
            code = Code.TOO_LARGE if sent.code == CloseCode.MESSAGE_TOO_BIG else Code.PROTOCOL_ERROR
            self.refusal = Refusal(code, sent.reason)

    def _fail(self, close_code: int, problem: str) -> None:
        self.has_ended, self.refusal = True, Refusal(Code.PROTOCOL_ERROR, problem)
        self._close = _close_frame(close_code, problem)

    def excess(self, engine: Engine, client: Client) -> Refusal | None:
        """Count what was received since the last call; return a refusal if it is much for what it carries."""
        if not isinstance(client, Session):
            if self.frames <= MAX_GUEST_FRAMES:
                return None
            return Refusal(Code.PROTOCOL_ERROR, "too many WebSocket frames before a login")
        idle, self.idle_frames = self.idle_frames, 0
        return engine.frames_received(client, idle) if idle else None

    def encode(self, frames: bytes | bytearray) -> bytes:
        """Return whole frames as they are sent."""
        if not self._is_json:
            return Frame(Opcode.BINARY, frames).serialize(mask=False)
        texts = (to_text(body).encode() for body in _bodies(frames))
        return b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in texts)

    def note_last_packet(self, frames: bytes | bytearray) -> None:
        """Let the close frame say what the last packet says, unless there is one already."""
        if self._close:
            return
        *_, body = _bodies(frames)
        last = protocol.decode(body)
        if last.kind == Kind.OK:  # of a logout
            self._close = _close_frame(CloseCode.NORMAL_CLOSURE, "")
        else:
            self._close = _close_frame(PRIVATE_CODES + last.payload["code"], last.payload["reason"])

    def end(self) -> bytes:
        """Return the close frame, once: behind a last packet, or as the answer to the client's."""
        close, self._close = self._close, b""
        return close


def _close_frame(code: int, reason: str) -> bytes:
    close = Close(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))
    return Frame(Opcode.CLOSE, close.serialize()).serialize(mask=False)


def _bodies(frames: bytes | bytearray) -> Iterator[bytes]:
    """Yield the bodies of whole frames."""
    start = 0
    while start < len(frames):
        begin = start + HEADER_BYTES
        start = begin + int.from_bytes(frames[start:begin], "big")
        yield bytes(frames[begin:start])
