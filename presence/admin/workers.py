"""Requests statistics of this machine's workers; see `presence.server.stats_socket` for the other end.

Concurrent requests for samples share one answer per worker. Explanations concern one user each, and their
number is limited.
"""

import math
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import structlog
import trio

from presence.admin.responses import busy
from presence.server.stats_socket import ANSWER_BYTES, request

ANSWER_TIMEOUT_S: Final = 1.0  # a worker answers in milliseconds, unless it is stalled
MAX_CONCURRENT_EXPLAINS: Final = 8  # their answers are long, and share the line with samples
EXPLAIN_QUEUE_TIMEOUT_S: Final = 1.0  # for requests beyond that
Sample = Mapping[str, Any]

_log = structlog.get_logger("presence.admin")


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    number: int  # of the worker; 0 without a supervisor
    sample: Sample | None  # see `presence.server.server.Server.sample`; None: it did not answer in time
    at: float  # time of the answer, of trio's clock


@dataclass(frozen=True, slots=True)
class _Round:
    """A request to all workers, the numbers of those that may still answer, and the answers so far."""

    awaited: set[int]
    answers: dict[int, WorkerAnswer] = field(default_factory=dict)
    is_complete: trio.Event = field(default_factory=trio.Event)


class Workers:
    """Sends requests to workers. Lines survive the replacement of workers.

    Attributes:
        requests, unanswered: requests so far, and those without an answer in time.
        answered_at: time of the last answer by worker, of trio's clock.
    """

    def __init__(self, lines: Sequence[socket.socket], first_number: int) -> None:
        for line in lines:
            line.setblocking(False)
        self._lines = dict(enumerate(lines, first_number))
        # Random, because a previous process may have left answers in the lines.
        self._first_id = self._next_id = random.randrange(2**48)  # noqa: S311 - not a secret
        self._waiting: dict[int, _Round] = {}  # by id of the request
        self._round: trio.Event | None = None  # of samples in progress; set when it is complete
        self._explaining = trio.Semaphore(MAX_CONCURRENT_EXPLAINS)
        self._last: list[WorkerAnswer] = []
        self._last_at = -math.inf
        self.answered_at: dict[int, float] = {}
        self.requests = self.unanswered = 0

    @property
    def numbers(self) -> list[int]:
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
        """Return the answers of all workers, with None for those that gave none in time."""
        identity, self._next_id = self._next_id, self._next_id + 1
        asked = request(identity, verb, arguments)
        self._waiting[identity] = found = _Round(set(self._lines))
        self.requests += len(self._lines)
        for number, line in self._lines.items():
            try:
                line.send(asked)
            except OSError:  # the line is full: the worker has not read for long
                found.awaited.discard(number)
        try:
            with trio.move_on_after(ANSWER_TIMEOUT_S if found.awaited else 0):
                await found.is_complete.wait()
        finally:
            del self._waiting[identity]
        now = trio.current_time()
        self.unanswered += len(self._lines) - len(found.answers)
        return [found.answers.get(number, WorkerAnswer(number, None, now)) for number in self._lines]

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
            if waiting := self._waiting.get(identity):
                waiting.answers[number] = WorkerAnswer(number, reply, trio.current_time())
                waiting.awaited.discard(number)
                if not waiting.awaited:
                    waiting.is_complete.set()
