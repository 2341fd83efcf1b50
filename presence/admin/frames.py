"""How the operators' process is told what it needs: one message over its standard input, then single bytes.

The other way come heartbeats (`presence.heartbeats`), and to the server `HUNG`.

Nothing secret is in arguments or in the environment so, where others could read it. The end of the input is
the order to end: it comes however whoever holds the other end has died.
"""

import socket
import struct
from typing import Final

RELOAD: Final = b"h"  # files are to be read again
HUNG: Final = b"x"  # the other way: the kept process hung, and is replaced
HEARD_BYTES: Final = 4096
_SIZE: Final = struct.Struct(">I")
_PIECE_BYTES: Final = 65_536


def framed(message: bytes) -> bytes:
    """Return what `read` takes."""
    return _SIZE.pack(len(message)) + message


def read(line: socket.socket) -> bytes | None:
    """Return the message; None if the line ends before it has come. Waits."""
    size = _exactly(line, _SIZE.size)
    return None if size is None else _exactly(line, _SIZE.unpack(size)[0])


def _exactly(line: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = line.recv(min(size - len(found), _PIECE_BYTES))
        if not piece:
            return None
        found += piece
    return bytes(found)
