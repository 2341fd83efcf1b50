"""WebSocket of one connection of the epoll transport: a layer above TCP or TLS; see `tls_connection.py`.

Until its request is answered, a connection has the received part of it. A refusal is sent in its place, as
HTTP. From then on `read` gives frames of this protocol, and `encode` takes them.

A read parses `PIECE_BYTES` at a time, and ends after `MAX_FRAMES_PER_READ` WebSocket frames: small frames
and JSON cost a hundred times as much as reading their bytes. What TLS has decrypted beyond that stays here;
`has_more` says so, because the kernel does not report it.

Tests: `tests/transports/test_websocket_connection.py`.
"""

import errno
import os
from http import HTTPStatus
from typing import Final

from presence.core.authenticator import Refusal
from presence.transports.limits import MAX_PACKETS_PER_SLICE
from presence.transports.tls_connection import TlsConnectionState
from presence.transports.websocket import WebSocket
from presence.transports.websocket_head import (
    HEAD_END,
    MAX_HEAD_BYTES,
    Answer,
    Origins,
    refused_as,
    respond_to_part,
)

PIECE_BYTES: Final = 1024  # at most 170 frames, some 5 us each: half of a turn
MAX_FRAMES_PER_READ: Final = MAX_PACKETS_PER_SLICE


class InputRefused(ConnectionError):
    """The client has broken a rule below the protocol's frames.

    Attributes:
        refusal: what it is told.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(errno.EPROTO, refusal.message)
        self.refusal = refusal


class WebSocketConnectionState:
    """A WebSocket connection, before and after its request is answered.

    Args:
        fd: the descriptor, non-blocking; owned by the caller.
        tls: the layer below; None: plain TCP.

    Attributes:
        tls: as above; None also if the client does not speak TLS.
        websocket: from an accepted request on.
    """

    __slots__ = ("_fd", "_head", "_input", "_output", "tls", "websocket")

    def __init__(self, fd: int, tls: TlsConnectionState | None) -> None:
        self._fd = fd
        self.tls = tls
        self._head: bytearray | None = bytearray()  # the received part of the request; None: it is answered
        self.websocket: WebSocket | None = None
        self._input = b""  # received and not parsed
        self._output = b""  # of the request's answer

    def answer_request(self, origins: Origins) -> Answer | None:
        """Read more of the request; return the answer, which is output, or None if more is awaited.

        Raises:
            OSError: as `read`.
        """
        head = self._head
        if head is None:
            return None
        if not (data := self._receive(MAX_HEAD_BYTES + 1 - len(head))):
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        head += data
        if (answer := respond_to_part(head, origins)) is None:
            return None
        if answer.status is HTTPStatus.SWITCHING_PROTOCOLS:
            self.websocket = WebSocket(is_json=answer.is_json)
            self._input = bytes(head.partition(HEAD_END)[2])
        self._head, self._output = None, answer.data
        return answer

    def _receive(self, limit: int) -> bytes:
        return os.read(self._fd, limit) if self.tls is None else self.tls.read(limit)

    def read(self, limit: int) -> bytes:
        """As `os.read`, of frames: b"" at the end, with or without a close frame.

        It returns at most a piece more than `limit`.

        Raises:
            BlockingIOError: no part of a frame has arrived.
            InputRefused: the client has broken a rule; frames before it were returned.
            OSError: the connection is broken.
        """
        websocket, frames = self.websocket, b""
        if websocket is None:
            return b""
        enough = websocket.frames + MAX_FRAMES_PER_READ
        while not websocket.has_ended:
            try:
                piece = self._next_piece()
            except OSError:  # nothing more, or a loss that the next read reports, too
                if frames:
                    return frames
                raise
            if not piece:
                return frames
            frames += websocket.receive(piece)
            if len(piece) < PIECE_BYTES or len(frames) >= limit or websocket.frames >= enough:
                break
        if frames:
            return frames
        if websocket.refusal is not None:
            raise InputRefused(websocket.refusal)
        if websocket.has_ended:
            return b""
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _next_piece(self) -> bytes:
        received = self._input or self._receive(PIECE_BYTES)
        piece, self._input = received[:PIECE_BYTES], received[PIECE_BYTES:]
        return piece

    @property
    def has_more(self) -> bool:
        """Whether something was received of which the kernel does not know, and a read would return it."""
        return bool(self._input) or (self.websocket is not None and self.websocket.has_ended)

    # Sending

    @property
    def has_output(self) -> bool:
        """Whether there is something to send without being asked for; see `take_output`."""
        return (
            bool(self._output)
            or (self.websocket is not None and bool(self.websocket.output))
            or (self.tls is not None and self.tls.has_output)
        )

    def take_output(self) -> bytes | bytearray:
        """Return what TLS and WebSocket say by themselves, as bytes to send.

        Raises:
            OSError: the connection is broken.
        """
        output, self._output = self._output, b""
        if self.websocket is not None:
            output += self.websocket.output
            self.websocket.output = b""
        own = b"" if self.tls is None else self.tls.take_output()
        return own + self._below(output)

    def encode(self, frames: bytes | bytearray) -> bytes | bytearray:
        """Return bytes to send for whole frames: before the answer to the request, a refusal as HTTP.

        Raises:
            OSError: the connection is broken.
        """
        if self.websocket is not None:
            return self._below(self.websocket.encode(frames))
        if self._head is None:
            return b""  # the request was refused
        return self._below(refused_as(frames).data)

    def note_last_packet(self, frames: bytes | bytearray) -> None:
        """Let the close frame say what the last packet says."""
        if self.websocket is not None:
            self.websocket.note_last_packet(frames)

    def end(self) -> bytes | bytearray:
        """End the sending side; return the close frame, and the notification of TLS."""
        close = b"" if self.websocket is None else self.websocket.end()
        if self.tls is None:
            return close
        return self._below(close) + self.tls.end() if self.tls.ready else b""

    def _below(self, data: bytes) -> bytes | bytearray:
        """Return data as the layer below sends it."""
        return data if self.tls is None or not data else self.tls.encode(data)
