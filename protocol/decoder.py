"""The incremental reader: bytes in as they arrive, packets out.

Tests: `tests/protocol/test_codec.py`, `tests/protocol/test_vectors.py`, `tests/protocol/test_bombs.py`.
"""

from presence.protocol.codec import HEADER_BYTES, KEEPALIVE, KEEPALIVE_PACKET, decode, frame_end
from presence.protocol.constants import SERVER_FRAME_LIMIT_BYTES
from presence.protocol.errors import ProtocolError
from presence.protocol.packet import Packet


class Decoder:
    """Cuts a stream of bytes into packets; the pieces that are fed may be cut anywhere.

    Call `next` until it returns None after each `feed`: then the decoder holds at most one unfinished
    frame. After a `ProtocolError` it stays failed: further bytes are dropped, and `next` raises it again.

    Args:
        limit_bytes: the largest frame allowed, without its length.

    Attributes:
        limit_bytes: may be changed between packets, effective from the next call of `next`.
    """

    __slots__ = ("_buffer", "_failure", "_start", "limit_bytes")

    def __init__(self, limit_bytes: int = SERVER_FRAME_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._start = 0  # bytes before it were returned as packets
        self._failure: ProtocolError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes as they were read.

        Raises:
            BufferError: more than one whole frame is buffered; the caller forgot to call `next`.
        """
        if self._failure is not None:
            return
        if len(self._buffer) - self._start > self.limit_bytes + HEADER_BYTES:
            raise BufferError("call next() until it returns None before feeding more")
        self._buffer += data

    def next(self) -> Packet | None:
        """Return the next packet, or None until more bytes are fed.

        Raises:
            ProtocolError: the stream broke a rule, now or at an earlier call.
        """
        if self._failure is not None:
            raise _copy(self._failure)
        try:
            return self._next()
        except ProtocolError as error:
            # A copy, because the raised one keeps its whole stack of frames alive.
            self._failure = _copy(error)
            self._buffer = bytearray()
            raise

    def _next(self) -> Packet | None:
        buffer, start = self._buffer, self._start
        if buffer.startswith(KEEPALIVE, start):
            self._start = start + len(KEEPALIVE)
            return KEEPALIVE_PACKET
        end = frame_end(buffer, start, self.limit_bytes)
        if not end:
            del buffer[:start]
            self._start = 0
            return None
        self._start = end
        return decode(bytes(buffer[start + HEADER_BYTES : end]))


def _copy(error: ProtocolError) -> ProtocolError:
    return ProtocolError(error.code, error.message, kind=error.kind, id=error.id)
