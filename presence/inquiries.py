"""What the process that serves operators asks a worker: a question is a datagram, and so is the answer.

The two share a pair of sockets. Datagrams keep their bounds, so a worker that is replaced begins with the
next question, and nobody has to connect again. A worker never waits here: an answer for which there is no
room, since nobody reads, is dropped and counted. At rest one task waits for a descriptor, and nothing wakes
up.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import structlog
import trio

from presence.faults import Faults

QUESTION_BYTES: Final = 4096
ANSWER_BYTES: Final = 65_536  # far more than all figures of a worker

_log = structlog.get_logger(__name__)

Answers = Mapping[str, Callable[..., object]]
"""By verb: takes the arguments of the question by name; returns what MessagePack can hold."""


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Return a new line: the end of who asks, and the worker's, both non-blocking."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (asking, answering):
        end.setblocking(False)
        # On macOS this is also the size of the longest datagram, and 2 KiB by default.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ANSWER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * ANSWER_BYTES)
    return asking, answering


class Inquiries:
    """The task of a worker that answers; a question is ``[id, verb, arguments]``, an answer ``[id, result]``.

    Args:
        line: the worker's end.
        answers: see `Answers`.
        faults: takes what goes wrong with a question.

    Attributes:
        asked: questions so far.
        dropped: answers for which there was no room.
    """

    def __init__(self, line: socket.socket, answers: Answers, faults: Faults | None = None) -> None:
        self._line = line
        self._answers = answers
        self._faults = faults or Faults()
        self.asked = self.dropped = 0

    async def run(self) -> None:
        """Answer until cancelled."""
        line = trio.socket.from_stdlib_socket(self._line)
        while True:
            try:
                question = await line.recv(QUESTION_BYTES)
            except OSError as error:  # of the one who asked before; a successor may come
                _log.debug("inquiry failed", error=str(error))
                await trio.sleep(1)
                continue
            self.asked += 1
            self._answer(question)
            await trio.lowlevel.checkpoint()

    def _answer(self, question: bytes) -> None:
        try:
            number, verb, arguments = msgpack.unpackb(question)
            answer: bytes = msgpack.packb([number, self._answers[verb](**arguments)])
        except Exception as error:  # a figure that cannot be told must not end a server
            self._faults.note("inquiry", error)
            return
        try:
            self._line.send(answer)
        except OSError:
            self.dropped += 1


def question(number: int, verb: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the datagram that asks; `number` comes back with the answer."""
    packed: bytes = msgpack.packb([number, verb, dict(arguments)])
    return packed
