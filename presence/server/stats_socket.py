"""What a worker is asked from outside its own process, and how it answers: over a line, or by way of Redis.

The process that serves operators asks over a pair of sockets that the two share: a question is a datagram,
and so is the answer. Datagrams keep their bounds, so a worker that is replaced begins with the next question,
and nobody has to connect again. An answer for which there is no room, since nobody reads, is dropped and
counted.

Anybody else asks over the node's control channel what it knows of a user, and finds the answer in Redis; see
`presence.store.ask_nodes`. Nobody's work may suffer from that: such questions are taken at a bounded rate,
wait in a bounded queue, and a thread of their own writes the answers, however slow Redis is. What is beyond
these bounds is dropped and counted: its asker says that this node did not answer.
"""

import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

import msgpack
import structlog
import trio

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.rate_limit import KeyedRateLimiter
from presence.common.runtime import Runtime
from presence.outbox.replies import Question

SAMPLE_VERSION: Final = 1  # a process that serves operators and finds another one here says so


class Readiness(Enum):
    """Whether a worker can serve clients, and what keeps it from that."""

    STARTING = "starting"
    READY = "ready"
    REDIS_AWAY = "redis_away"  # its lease has ended, and it serves clients from memory
    FENCED = "fenced"  # other nodes took it for dead, and its sessions are not all registered anew
    DRAINING = "draining"

    @property
    def serves(self) -> bool:
        """Whether clients may be sent here. Without Redis they may: an outage of Redis hits all nodes."""
        return self in {Readiness.READY, Readiness.REDIS_AWAY}


QUESTION_BYTES: Final = 4096
ANSWER_BYTES: Final = 65_536  # far more than all figures of a worker

MAX_QUESTIONS_PER_S: Final = (
    100.0  # by way of Redis: far more than operators ask; each costs the loop some 0.1 ms
)
MAX_QUEUED_QUESTIONS: Final = 100
ANSWER_TIMEOUT_S: Final = 2.0  # whoever asked has gone by then

_log = structlog.get_logger(__name__)

Answers = Mapping[str, Callable[..., object]]
"""By verb: takes the arguments of the question by name; returns what MessagePack can hold."""


def stats_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return a new line: the end of who asks, and the worker's, both non-blocking."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (asking, answering):
        end.setblocking(False)
        # On macOS this is also the size of the longest datagram, and 2 KiB by default.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ANSWER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * ANSWER_BYTES)
    return asking, answering


def question(number: int, verb: str, arguments: Mapping[str, Any]) -> bytes:
    """Return the datagram that asks; `number` comes back with the answer."""
    packed: bytes = msgpack.packb([number, verb, dict(arguments)])
    return packed


class StatsResponder:
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
                asked = await line.recv(QUESTION_BYTES)
            except OSError as error:  # of the one who asked before; a successor may come
                _log.debug("stats request failed", error=str(error))
                await trio.sleep(1)
                continue
            self.asked += 1
            self._answer(asked)
            await trio.lowlevel.checkpoint()

    def _answer(self, asked: bytes) -> None:
        try:
            number, verb, arguments = msgpack.unpackb(asked)
            answer: bytes = msgpack.packb([number, self._answers[verb](**arguments)])
        except Exception as error:  # a figure that cannot be told must not end a server
            self._faults.note("stats request", error)
            return
        try:
            self._line.send(answer)
        except OSError:
            self.dropped += 1


class ReplyChannel(Protocol):
    """Where answers by way of Redis go: plain calls that may block, made from one thread at a time."""

    def write(self, question: Question, node: str, answer: bytes) -> None:
        """Leave a node's answer for the asker. Raises `StoreUnavailable` or `StoreError`."""

    def close(self) -> None:
        """Close the connection, also while a call waits for its answer; any thread may do so."""


@dataclass(slots=True)
class ExplainCounters:
    """Counters since the start; a question has at most one outcome."""

    asked: int = 0  # questions that came over the control channel
    answered: int = 0  # answers that were written
    dropped: int = 0  # questions beyond the rate or the queue, or too old
    failed: int = 0  # answers that could not be made or written


@dataclass(eq=False, repr=False)
class ExplainResponder:
    """Answers what comes over the control channel."""

    explain: Callable[[str], object]  # returns what is told of a user; called in the event loop
    reply_channel: ReplyChannel  # where that goes; nobody else uses it
    clock: Clock  # monotonic time
    runtime: InitVar[Runtime]  # where the task runs
    _: KW_ONLY
    node: Callable[[], str]  # this node's id at present
    faults: Faults = field(default_factory=Faults)  # takes what goes wrong with a question

    def __post_init__(self, runtime: Runtime) -> None:
        self._bell = runtime.bell()
        self._thread = runtime.caller(self.reply_channel.close)
        self._rate: KeyedRateLimiter[None] = KeyedRateLimiter(MAX_QUESTIONS_PER_S, MAX_QUESTIONS_PER_S)
        self._queue: deque[tuple[float, Question]] = deque()
        self.statistics = ExplainCounters()

    def enqueue(self, questions: Iterable[Question]) -> None:
        """Take questions; never waits."""
        now = self.clock.now()
        for each in questions:
            self.statistics.asked += 1
            if len(self._queue) >= MAX_QUEUED_QUESTIONS or not self._rate.take(None, now):
                self.statistics.dropped += 1
            else:
                self._queue.append((now, each))
                self._bell.ring()

    async def run(self) -> None:
        """Answer for ever; cancel it to stop."""
        while True:
            await self._bell.wait(math.inf)
            while self._queue:
                taken_at, asked = self._queue.popleft()
                if self.clock.now() - taken_at > ANSWER_TIMEOUT_S:
                    self.statistics.dropped += 1
                else:
                    await self._answer(asked)
            self.reply_channel.close()

    async def _answer(self, asked: Question) -> None:
        node = self.node()
        try:
            packed: bytes = msgpack.packb(self.explain(asked.uid))
            await self._thread.call(partial(self.reply_channel.write, asked, node, packed))
        except (StoreUnavailable, StoreError) as error:
            self.statistics.failed += 1
            _log.debug("explain reply not sent", error=str(error))
        except Exception as error:  # what cannot be told must not end a server
            self.statistics.failed += 1
            self.faults.note("explain request", error)
        else:
            self.statistics.answered += 1
