"""Answers of a worker to programs that are no nodes, written to Redis: reports on users and on messages.

Operators' questions about a user come over the node's control channel; messages of backends want to know how
many sessions got them. Neither may slow down a server. Both wait in a bounded queue, questions are accepted
at a bounded rate, and answers that are too late for any program to wait for are dropped and counted. The
program then learns that this node did not answer. A message is delivered whatever becomes of its report.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.rate_limit import TokenBucket
from presence.common.runtime import Runtime
from presence.messaging.message_bus import DeliveryReport
from presence.server.question_answers import AnswerFunctions
from presence.store.answers import AnswerField, report_field
from presence.store.questions import Question, answer_field

MAX_QUEUED_ANSWERS: Final = 8192  # as many as messages that clients may have waiting: at most 8 MB
MAX_ANSWERS_PER_CALL: Final = 256  # of which one is to a question: it takes some 0.1 ms of the loop
MAX_QUESTIONS_PER_S: Final = 100.0  # far more than operators ask
QUESTION_WORK: Final = "explain request"  # in metrics and in the log, of all kinds of questions
ANSWER_TIMEOUT_S: Final = 2.0  # by then the program has given up

_log = structlog.get_logger(__name__)


class AnswerChannel(Protocol):
    """Stores answers in Redis: blocking calls, one at a time."""

    def write(self, answers: Sequence[AnswerField]) -> None:
        """Store answers for the programs that asked. Raises `StoreUnavailable` or `StoreError`."""


@dataclass(slots=True)
class AnswerCounters:
    """Counters since the start; an answer has at most one outcome."""

    due: int = 0
    written: int = 0
    dropped: int = 0  # beyond the rate or the queue, or too late
    failed: int = 0  # could not be made, or Redis did not take it

    def fail(self) -> None:
        self.failed += 1


class _Due(NamedTuple):
    since: float
    about: Question | DeliveryReport


class AnswerQueue:
    """Writes answers in order, those to questions and reports on messages.

    Args:
        answer_functions: called in the event loop.
        channel: used by this responder only.
        clock: monotonic time.
        runtime: runs the task.
        node: returns the current node id.
        faults: contains errors of an answer.
    """

    def __init__(
        self,
        answer_functions: AnswerFunctions,
        channel: AnswerChannel,
        clock: Clock,
        runtime: Runtime,
        *,
        node: Callable[[], str],
        faults: Faults | None = None,
    ) -> None:
        self._answer_functions = answer_functions
        self._channel = channel
        self._clock = clock
        self._node = node
        self._faults = faults or Faults()
        self._bell = runtime.wake_event()
        self._redis = runtime.loop_caller()
        self._rate = TokenBucket(MAX_QUESTIONS_PER_S, MAX_QUESTIONS_PER_S, clock.now())
        self._queue: deque[_Due] = deque()
        self.questions = AnswerCounters()
        self.reports = AnswerCounters()

    def answer(self, questions: Iterable[Question]) -> None:
        """Enqueue answers to questions, or drop those beyond the bounds; never waits."""
        for each in questions:
            self._enqueue(each, is_admitted=self._rate.take(self._clock.now()))

    def report(self, report: DeliveryReport) -> None:
        """Enqueue a report, or drop it beyond the bound; never waits."""
        self._enqueue(report)

    async def run(self) -> None:
        """Write answers until cancelled."""
        while True:
            await self._bell.wait(math.inf)
            while self._queue:
                if batch := self._next_batch():
                    await self._write(batch)

    def _enqueue(self, about: Question | DeliveryReport, *, is_admitted: bool = True) -> None:
        counters = self._counters(about)
        counters.due += 1
        if not is_admitted or len(self._queue) >= MAX_QUEUED_ANSWERS:
            counters.dropped += 1
        else:
            self._queue.append(_Due(self._clock.now(), about))
            self._bell.set()

    def _counters(self, about: Question | DeliveryReport) -> AnswerCounters:
        return self.questions if isinstance(about, Question) else self.reports

    def _next_batch(self) -> list[Question | DeliveryReport]:
        """Return the next that are not too late, up to a question."""
        now, batch = self._clock.now(), list[Question | DeliveryReport]()
        while self._queue and len(batch) < MAX_ANSWERS_PER_CALL:
            since, about = self._queue.popleft()
            if now - since > ANSWER_TIMEOUT_S:
                self._counters(about).dropped += 1
                continue
            batch.append(about)
            if isinstance(about, Question):
                break
        return batch

    async def _write(self, batch: list[Question | DeliveryReport]) -> None:
        node, answers, made = self._node(), list[AnswerField](), list[AnswerCounters]()
        for about in batch:
            counters = self._counters(about)
            with self._faults.contained(_work(about), counters.fail):
                answers.append(
                    answer_field(about, node, self._answer_functions[about.kind](about.uid))
                    if isinstance(about, Question)
                    else report_field(about, node)
                )
                made.append(counters)
        if not made:
            return
        try:
            await self._redis.call(partial(self._channel.write, answers))
        except Exception as error:  # answers that fail must not end the server
            for each in made:
                each.fail()
            if isinstance(error, (StoreUnavailable, StoreError)):
                _log.debug("answers not written", error=str(error))
            else:
                self._faults.record(_work(batch[-1]), error)
        else:
            for each in made:
                each.written += 1


def _work(about: Question | DeliveryReport) -> str:
    return QUESTION_WORK if isinstance(about, Question) else "delivery report"
