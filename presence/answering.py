"""Answers what operators ask about users over the control channel.

Questions are few, and nobody's work may suffer from them: they are taken at a bounded rate, wait in a bounded
queue, and a thread of their own writes the answers, however slow Redis is. A question beyond these bounds is
dropped and counted: its asker says that this node did not answer. Between questions there is no connection.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgpack
import structlog

from presence.buckets import Buckets
from presence.clock import Clock
from presence.faults import Faults
from presence.questions import Answers, Question
from presence.runtime import Runtime
from presence.store.batches import StoreError, StoreUnavailable

QUESTIONS_A_S: Final = 100.0  # far more than operators ask; each costs the event loop some 0.1 ms
QUEUE_MAX: Final = 100
PATIENCE_S: Final = 2.0  # whoever asked has gone by then

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AnsweringStatistics:
    """Counters since the start; a question has at most one outcome.

    Attributes:
        asked: questions that came over the control channel.
        answered: answers that were written.
        dropped: questions beyond the rate or the queue, or too old.
        failed: answers that could not be made or written.
    """

    asked: int
    answered: int
    dropped: int
    failed: int


class Answering:
    """See the header.

    Args:
        explain: returns what is told of a user; called in the event loop.
        answers: where that goes; nobody else uses it.
        clock: monotonic time.
        runtime: where the task runs.
        node: this node's id at present.
        faults: takes what goes wrong with a question.
    """

    def __init__(
        self,
        explain: Callable[[str], object],
        answers: Answers,
        clock: Clock,
        runtime: Runtime,
        *,
        node: Callable[[], str],
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._explain = explain
        self._answers = answers
        self._clock = clock
        self._node = node
        self._bell = runtime.bell()
        self._thread = runtime.caller(answers.close)
        self._rate: Buckets[None] = Buckets(QUESTIONS_A_S, QUESTIONS_A_S)
        self._queue: deque[tuple[float, Question]] = deque()
        self._asked = self._answered = self._dropped = self._failed = 0

    def take(self, questions: Iterable[Question]) -> None:
        """Take questions; never waits."""
        now = self._clock.now()
        for question in questions:
            self._asked += 1
            if len(self._queue) >= QUEUE_MAX or not self._rate.take(None, now):
                self._dropped += 1
            else:
                self._queue.append((now, question))
                self._bell.ring()

    def statistics(self) -> AnsweringStatistics:
        """Return the counters."""
        return AnsweringStatistics(self._asked, self._answered, self._dropped, self._failed)

    async def run(self) -> None:
        """Answer for ever; cancel it to stop."""
        while True:
            await self._bell.wait(math.inf)
            while self._queue:
                taken_at, question = self._queue.popleft()
                if self._clock.now() - taken_at > PATIENCE_S:
                    self._dropped += 1
                else:
                    await self._answer(question)
            self._answers.close()

    async def _answer(self, question: Question) -> None:
        node = self._node()
        try:
            packed: bytes = msgpack.packb(self._explain(question.uid))
            await self._thread.call(partial(self._answers.write, question, node, packed))
        except (StoreUnavailable, StoreError) as error:
            self._failed += 1
            _log.debug("answer cannot be written", error=str(error))
        except Exception as error:  # what cannot be told must not end a server
            self._failed += 1
            self._faults.note("explain request", error)
        else:
            self._answered += 1
