"""The start message of the admin process, sent over its standard input, followed by single-byte commands.

This keeps secrets out of arguments and environment, which others can read. The end of the input means stop,
which works however the server dies. In the other direction come heartbeats (`presence.prefork.control_pipe`).

Tests: `tests/admin/test_launcher.py`.
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Final

from presence.config.settings import Settings
from presence.server.listeners import ListenAddress

RELOAD: Final = b"h"  # reread the files
NICENESS: Final = 5  # clients have priority over operators if the processor is busy
_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class StartMessage:
    settings: Settings
    redis_url: str
    listeners: tuple[int, ...]  # descriptors of sockets that listen
    # descriptors of the requesting ends, one per worker, see `presence.server.stats_socket`
    lines: tuple[int, ...]
    address: ListenAddress  # where the listeners listen
    url: str  # the same as a URL

    def packed(self) -> bytes:
        """Return the message in the form that `read` takes."""
        message = pickle.dumps(self)
        return _SIZE.pack(len(message)) + message


def read(line: socket.socket) -> StartMessage | None:
    """Receive the message; None if the line closes first. Blocks."""
    size = _exactly(line, _SIZE.size)
    message = None if size is None else _exactly(line, _SIZE.unpack(size)[0])
    if message is None:
        return None
    start: StartMessage = pickle.loads(message)  # noqa: S301 - only our parent can write there
    return start


def _exactly(line: socket.socket, size: int) -> bytes | None:
    found = line.recv(size, socket.MSG_WAITALL)
    return found if len(found) == size else None
