"""How a worker answers the admin process: over a stats socket.

Operators' questions come through Redis, see `presence.server.answer_queue`.

The admin process shares a pair of datagram sockets with each worker. A request and its answer are one
datagram each, so a replaced worker continues with the next request, and no reconnect is needed. An answer
that does not fit into the socket buffer is dropped and counted.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import structlog
import trio

from presence.common.faults import Faults

SAMPLE_VERSION: Final = 1  # an admin process that finds another version reports it
REQUEST_BYTES: Final = 4096
ANSWER_BYTES: Final = 65_536  # far more than a sample of a worker

_log = structlog.get_logger(__name__)

RequestHandlers = Mapping[str, Callable[..., object]]
"""Handlers by verb: take the arguments of the request as keywords; return what MessagePack can encode."""


def stats_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the admin process's end and the worker's end of a new pair, both non-blocking."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (asking, answering):
        end.setblocking(False)
        # On macOS this is also the size of the longest datagram, and 2 KiB by default.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ANSWER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * ANSWER_BYTES)
    return asking, answering


def request(number: int, verb: str, arguments: Mapping[str, Any]) -> bytes:
    """Return a request as a datagram; the answer repeats `number`."""
    packed: bytes = msgpack.packb([number, verb, dict(arguments)])
    return packed


class StatsResponder:
    """Answers requests ``[id, verb, arguments]`` on the stats socket with ``[id, result]``.

    Attributes:
        asked: number of requests.
        dropped: number of answers that did not fit into the socket buffer.
    """

    def __init__(self, line: socket.socket, handlers: RequestHandlers, faults: Faults | None = None) -> None:
        self._line = line
        self._handlers = handlers
        self._faults = faults or Faults()
        self.asked = self.dropped = 0

    async def run(self) -> None:
        """Answer until cancelled."""
        line = trio.socket.from_stdlib_socket(self._line)
        while True:
            try:
                asked = await line.recv(REQUEST_BYTES)
            except OSError as error:  # left by a previous admin process; its successor may follow
                _log.debug("stats request failed", error=str(error))
                await trio.sleep(1)
                continue
            self.asked += 1
            self._answer(asked)
            await trio.lowlevel.checkpoint()

    def _answer(self, asked: bytes) -> None:
        try:
            number, verb, arguments = msgpack.unpackb(asked)
            answer: bytes = msgpack.packb([number, self._handlers[verb](**arguments)])
        except Exception as error:  # a request that fails must not end the server
            self._faults.record("stats request", error)
            return
        try:
            self._line.send(answer)
        except OSError:
            self.dropped += 1
