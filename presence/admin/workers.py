"""The workers of this machine, asked over their lines; see `presence.server.stats_socket` for the other end.

Whoever wants figures while a worker is asked for them has that answer, too: however many look, it is asked
once. Explanations are of one user each, and so many at once.
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

from presence.admin.answers import busy
from presence.server.stats_socket import ANSWER_BYTES, question

ANSWER_WAIT_S: Final = 1.0  # a worker answers in milliseconds, unless it is stalled
EXPLAINING_MAX: Final = 8  # at once: their answers are long, and samples share the line
TURN_S: Final = 1.0  # for who asks beyond that
Sample = Mapping[str, Any]

_log = structlog.get_logger("presence.admin")


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What a worker said of itself.

    Attributes:
        number: the worker's; 0 of one without a supervisor.
        sample: see `presence.server.server.Server.sample`; None: it did not answer in time.
        at: when, of trio's clock.
    """

    number: int
    sample: Sample | None
    at: float


class Workers:
    """Asks workers. Lines stay when workers are replaced.

    Args:
        lines: the asking ends, non-blocking.
        first_number: the number of the worker at the other end of the first one.

    Attributes:
        questions, unanswered: datagrams so far that asked, and those of them that nobody answered in time.
        heard_at: by worker, when it answered last, of trio's clock.
    """

    def __init__(self, lines: Sequence[socket.socket], first_number: int) -> None:
        for line in lines:
            line.setblocking(False)
        self._lines = dict(enumerate(lines, first_number))
        # Random, for a predecessor of this process may have left answers in the lines.
        self._first_id = self._next_id = random.randrange(2**48)  # noqa: S311 - tells two apart, no secret
        self._waiting: dict[int, dict[int, tuple[trio.Event, list[Any]]]] = {n: {} for n in self._lines}
        self._round: trio.Event | None = None  # of samples: set when it is over
        self._explaining = trio.Semaphore(EXPLAINING_MAX)
        self._last: list[WorkerAnswer] = []
        self._last_at = -math.inf
        self.heard_at: dict[int, float] = {}
        self.questions = self.unanswered = 0

    @property
    def numbers(self) -> list[int]:
        """The numbers of all workers."""
        return list(self._lines)

    @property
    def last(self) -> list[WorkerAnswer]:
        """The answers of the last round, whatever their age; empty before the first."""
        return self._last

    async def run(self) -> None:
        """Take answers until cancelled."""
        async with trio.open_nursery() as nursery:
            for number, line in self._lines.items():
                nursery.start_soon(self._listen, number, trio.socket.from_stdlib_socket(line))

    async def samples(self, max_age_s: float = 0.0) -> list[WorkerAnswer]:
        """Return what each worker says of itself, within about a second.

        Args:
            max_age_s: answers of the round before will do if it is no older than this.
        """
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
        """Return what the workers that answer know of a user's sessions.

        Raises:
            ApiError: many ask already, and it would not be this one's turn soon.
        """
        with trio.move_on_after(TURN_S) as patience:
            await self._explaining.acquire()
        if patience.cancelled_caught:
            raise busy("too many ask for an explanation at once")
        try:
            answers = await self._ask_all("explain", {"uid": uid})
        finally:
            self._explaining.release()
        return [dict(each.sample) for each in answers if each.sample]

    async def _ask_all(self, verb: str, arguments: Mapping[str, Any]) -> list[WorkerAnswer]:
        answers: dict[int, WorkerAnswer] = {}

        async def ask(number: int) -> None:
            said = await self._ask(number, verb, arguments)
            answers[number] = WorkerAnswer(number, said, trio.current_time())

        async with trio.open_nursery() as nursery:
            for number in self._lines:
                nursery.start_soon(ask, number)
        return [answers[number] for number in self._lines]

    async def _ask(self, number: int, verb: str, arguments: Mapping[str, Any]) -> Any:
        """Return a worker's answer, or None where none came in time."""
        identity, self._next_id = self._next_id, self._next_id + 1
        came, held = trio.Event(), list[Any]()
        self._waiting[number][identity] = (came, held)
        self.questions += 1
        try:
            self._lines[number].send(question(identity, verb, arguments))
            with trio.move_on_after(ANSWER_WAIT_S):
                await came.wait()
        except OSError:  # its line is full: it has not read for long
            await trio.lowlevel.checkpoint()
        finally:
            del self._waiting[number][identity]
        if held:
            return held[0]
        self.unanswered += 1
        return None

    async def _listen(self, number: int, line: trio.socket.SocketType) -> None:
        while True:
            try:
                identity, said = msgpack.unpackb(await line.recv(ANSWER_BYTES), strict_map_key=False)
            except (ValueError, TypeError, OSError) as error:
                _log.debug("cannot read worker reply", worker=number, error=str(error))
                await trio.sleep(0.1)
                continue
            if not self._first_id <= identity < self._next_id:
                continue
            self.heard_at[number] = trio.current_time()
            if waiting := self._waiting[number].get(identity):
                came, held = waiting
                held.append(said)
                came.set()
