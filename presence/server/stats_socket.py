"""How a worker answers other processes: over a stats socket, or through Redis.

The admin process shares a pair of datagram sockets with each worker. A question and its answer are one
datagram each, so a replaced worker continues with the next question, and no reconnect is needed. An answer
that does not fit into the socket buffer is dropped and counted.

All other processes send explain requests over the node's control channel, and find the answer in Redis; see
`presence.store.ask_nodes`. Such requests must not slow down a server: they are accepted at a bounded rate
into a bounded queue, which is answered one by one. Requests beyond these bounds are dropped and
counted; the command that sent them reports that this node did not answer.
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

SAMPLE_VERSION: Final = 1  # an admin process that finds another version reports it


class Readiness(Enum):
    """Whether a worker can serve clients, or why not."""

    STARTING = "starting"
    READY = "ready"
    REDIS_AWAY = "redis_away"  # its lease has expired; it serves clients from memory
    FENCED = "fenced"  # other nodes declared it dead; not all sessions are registered again yet
    DRAINING = "draining"

    @property
    def serves(self) -> bool:
        """Whether to send clients here. Yes without Redis, because its outage affects all nodes."""
        return self in {Readiness.READY, Readiness.REDIS_AWAY}


QUESTION_BYTES: Final = 4096
ANSWER_BYTES: Final = 65_536  # far more than a sample of a worker

# Through Redis: far more than operators ask; each takes about 0.1 ms of the loop.
MAX_QUESTIONS_PER_S: Final = 100.0
MAX_QUEUED_QUESTIONS: Final = 100
ANSWER_TIMEOUT_S: Final = 2.0  # by then the caller has given up

_log = structlog.get_logger(__name__)

Answers = Mapping[str, Callable[..., object]]
"""Handlers by verb: take the arguments of the question as keywords; return what MessagePack can encode."""


def stats_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the admin process's end and the worker's end of a new pair, both non-blocking."""
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (asking, answering):
        end.setblocking(False)
        # On macOS this is also the size of the longest datagram, and 2 KiB by default.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ANSWER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * ANSWER_BYTES)
    return asking, answering


def question(number: int, verb: str, arguments: Mapping[str, Any]) -> bytes:
    """Return a question as a datagram; the answer repeats `number`."""
    packed: bytes = msgpack.packb([number, verb, dict(arguments)])
    return packed


class StatsResponder:
    """Answers questions ``[id, verb, arguments]`` on the stats socket with ``[id, result]``.

    Attributes:
        asked: number of questions.
        dropped: number of answers that did not fit into the socket buffer.
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
            answer: bytes = msgpack.packb([number, self._answers[verb](**arguments)])
        except Exception as error:  # a question that fails must not end the server
            self._faults.record("stats request", error)
            return
        try:
            self._line.send(answer)
        except OSError:
            self.dropped += 1


class ReplyChannel(Protocol):
    """Stores answers in Redis: blocking calls, one at a time."""

    def write(self, question: Question, node: str, answer: bytes) -> None:
        """Store a node's answer for the caller. Raises `StoreUnavailable` or `StoreError`."""

    def close(self) -> None:
        """Close the connection until the next call."""


@dataclass(slots=True)
class ExplainCounters:
    """Counters since the start; a question has at most one outcome."""

    asked: int = 0  # questions received over the control channel
    answered: int = 0  # answers written
    dropped: int = 0  # questions beyond the rate or the queue, or too old
    failed: int = 0  # answers that could not be made or written


@dataclass(eq=False, repr=False)
class ExplainResponder:
    """Answers explain requests from the control channel."""

    explain: Callable[[str], object]  # returns the report on a user; called in the event loop
    reply_channel: ReplyChannel  # used by this responder only
    clock: Clock  # monotonic time
    runtime: InitVar[Runtime]  # runs the task
    _: KW_ONLY
    node: Callable[[], str]  # returns the current node id
    faults: Faults = field(default_factory=Faults)  # contains errors of a question

    def __post_init__(self, runtime: Runtime) -> None:
        self._bell = runtime.wake_event()
        self._redis = runtime.loop_caller()
        self._rate: KeyedRateLimiter[None] = KeyedRateLimiter(MAX_QUESTIONS_PER_S, MAX_QUESTIONS_PER_S)
        self._queue: deque[tuple[float, Question]] = deque()
        self.statistics = ExplainCounters()

    def enqueue(self, questions: Iterable[Question]) -> None:
        """Enqueue questions, or drop those beyond the bounds; never waits."""
        now = self.clock.now()
        for each in questions:
            self.statistics.asked += 1
            if len(self._queue) >= MAX_QUEUED_QUESTIONS or not self._rate.take(None, now):
                self.statistics.dropped += 1
            else:
                self._queue.append((now, each))
                self._bell.set()

    async def run(self) -> None:
        """Answer until cancelled."""
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
            await self._redis.call(partial(self.reply_channel.write, asked, node, packed))
        except (StoreUnavailable, StoreError) as error:
            self.statistics.failed += 1
            _log.debug("explain reply not sent", error=str(error))
        except Exception as error:  # a question that fails must not end the server
            self.statistics.failed += 1
            self.faults.record("explain request", error)
        else:
            self.statistics.answered += 1
