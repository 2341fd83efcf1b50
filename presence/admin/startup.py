"""What the operators' process is told when it starts: one message over its standard input, then single bytes.

Nothing secret is in arguments or in the environment so, where others could read it. The end of the input is
the order to end: it comes however the server at the other end has died. The other way come heartbeats
(`presence.prefork.control_pipe`).
"""

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Final

from presence.config.settings import Settings
from presence.server.listeners import ListenAddress

RELOAD: Final = b"h"  # files are to be read again
NICENESS: Final = 5  # where processors are short, users come before operators, also while a server starts
_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Start:
    """The message.

    Attributes:
        settings: checked settings.
        redis_url: where Redis is.
        listeners: descriptors of sockets that listen.
        lines: descriptors of the asking ends, see `presence.server.stats_socket`, one a worker.
        address: where the listeners listen.
        url: the same, for people.
    """

    settings: Settings
    redis_url: str
    listeners: tuple[int, ...]
    lines: tuple[int, ...]
    address: ListenAddress
    url: str

    def packed(self) -> bytes:
        """Return what `read` takes."""
        message = pickle.dumps(self)
        return _SIZE.pack(len(message)) + message


def read(line: socket.socket) -> Start | None:
    """Return the message; None if the line ends before it has come. Waits."""
    size = _exactly(line, _SIZE.size)
    message = None if size is None else _exactly(line, _SIZE.unpack(size)[0])
    if message is None:
        return None
    start: Start = pickle.loads(message)  # noqa: S301 - whoever can write there is who started us
    return start


def _exactly(line: socket.socket, size: int) -> bytes | None:
    found = line.recv(size, socket.MSG_WAITALL)
    return found if len(found) == size else None
