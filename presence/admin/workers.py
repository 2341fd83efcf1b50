"""Requests statistics of this machine's workers; see `presence.server.stats_socket` for the other end.

Concurrent requests for samples share one answer per worker. Explanations concern one user each, and their
number is limited.
"""

import math
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import structlog
import trio

from presence.admin.responses import busy
from presence.server.stats_socket import ANSWER_BYTES, question

ANSWER_TIMEOUT_S: Final = 1.0  # a worker answers in milliseconds, unless it is stalled
MAX_CONCURRENT_EXPLAINS: Final = 8  # their answers are long, and share the line with samples
EXPLAIN_QUEUE_TIMEOUT_S: Final = 1.0  # for requests beyond that
Sample = Mapping[str, Any]

_log = structlog.get_logger("presence.admin")


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The answer of a worker."""

    number: int  # of the worker; 0 without a supervisor
    sample: Sample | None  # see `presence.server.server.Server.sample`; None: it did not answer in time
    at: float  # time of the answer, of trio's clock


class Workers:
    """Sends requests to workers. Lines survive the replacement of workers.

    Attributes:
        questions, unanswered: requests so far, and those without an answer in time.
        answered_at: time of the last answer by worker, of trio's clock.
    """

    def __init__(self, lines: Sequence[socket.socket], first_number: int) -> None:
        for line in lines:
            line.setblocking(False)
        self._lines = dict(enumerate(lines, first_number))
        # Random, because a previous process may have left answers in the lines.
        self._first_id = self._next_id = random.randrange(2**48)  # noqa: S311 - not a secret
        self._waiting: dict[int, dict[int, tuple[trio.Event, list[Any]]]] = {n: {} for n in self._lines}
        self._round: trio.Event | None = None  # of samples in progress; set when it is complete
        self._explaining = trio.Semaphore(MAX_CONCURRENT_EXPLAINS)
        self._last: list[WorkerAnswer] = []
        self._last_at = -math.inf
        self.answered_at: dict[int, float] = {}
        self.questions = self.unanswered = 0

    @property
    def numbers(self) -> list[int]:
        """The numbers of all workers."""
        return list(self._lines)

    @property
    def last(self) -> list[WorkerAnswer]:
        """The answers of the last round, regardless of age; empty before the first."""
        return self._last

    async def run(self) -> None:
        """Receive answers until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, line in self._lines.items():
                nursery.start_soon(self._listen, number, trio.socket.from_stdlib_socket(line))

    async def samples(self, max_age_s: float = 0.0) -> list[WorkerAnswer]:
        """Return the answers of all workers, within about a second; none is older than `max_age_s`."""
        if trio.current_time() - self._last_at <= max_age_s:
            await trio.lowlevel.checkpoint()
            return self._last
        if self._round is not None:
            await self._round.wait()
            return self._last
        self._round = done = trio.Event()
        try:
            self._last = await self._ask_all("sample", {})
            self._last_at = trio.current_time()
        finally:
            self._round = None
            done.set()
        return self._last

    async def explain(self, uid: str) -> list[dict[str, Any]]:
        """Return what the answering workers know about a user's sessions.

        Raises:
            ApiError: too many requests are pending.
        """
        with trio.move_on_after(EXPLAIN_QUEUE_TIMEOUT_S) as queueing:
            await self._explaining.acquire()
        if queueing.cancelled_caught:
            raise busy("too many concurrent explanations")
        try:
            answers = await self._ask_all("explain", {"uid": uid})
        finally:
            self._explaining.release()
        return [dict(each.sample) for each in answers if each.sample]

    async def _ask_all(self, verb: str, arguments: Mapping[str, Any]) -> list[WorkerAnswer]:
        answers: dict[int, WorkerAnswer] = {}

        async def ask(number: int) -> None:
            reply = await self._ask(number, verb, arguments)
            answers[number] = WorkerAnswer(number, reply, trio.current_time())

        async with trio.open_nursery() as nursery:
            for number in self._lines:
                nursery.start_soon(ask, number)
        return [answers[number] for number in self._lines]

    async def _ask(self, number: int, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Return a worker's answer, or None without one in time."""
        identity, self._next_id = self._next_id, self._next_id + 1
        arrived, replies = trio.Event(), list[Any]()
        self._waiting[number][identity] = (arrived, replies)
        self.questions += 1
        try:
            self._lines[number].send(question(identity, verb, arguments))
            with trio.move_on_after(ANSWER_TIMEOUT_S):
                await arrived.wait()
        except OSError:  # the line is full: the worker has not read for long
            await trio.lowlevel.checkpoint()
        finally:
            del self._waiting[number][identity]
        if replies:
            return replies[0]
        self.unanswered += 1
        return None

    async def _listen(self, number: int, line: trio.socket.SocketType) -> None:
        while True:
            try:
                identity, reply = msgpack.unpackb(await line.recv(ANSWER_BYTES), strict_map_key=False)
            except (ValueError, TypeError, OSError) as error:
                _log.debug("cannot read worker reply", worker=number, error=str(error))
                await trio.sleep(0.1)
                continue
            if not self._first_id <= identity < self._next_id:
                continue
            self.answered_at[number] = trio.current_time()
            if waiting := self._waiting[number].get(identity):
                arrived, replies = waiting
                replies.append(reply)
                arrived.set()
