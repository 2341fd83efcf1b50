"""Answers through Redis, to questions and on messages of backends: in order and together, within bounds."""

from collections.abc import Sequence
from dataclasses import astuple

import msgpack
import pytest
import structlog
import trio

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.loop_calls import let_others_run
from presence.common.runtime import TrioRuntime
from presence.messaging.message_bus import DeliveryReport, ReplyAddress
from presence.server.answer_queue import (
    ANSWER_TIMEOUT_S,
    MAX_ANSWERS_PER_CALL,
    MAX_QUESTIONS_PER_S,
    MAX_QUEUED_ANSWERS,
    AnswerCounters,
    AnswerQueue,
)
from presence.store.answers import AnswerField
from presence.store.questions import Question, QuestionKind
from tests.support.waiting import until

ANN, BROKEN = (
    Question(QuestionKind.EXPLAIN, "ann", "0" * 32),
    Question(QuestionKind.EXPLAIN, "broken", "0" * 32),
)


def report(number: int) -> DeliveryReport:
    return DeliveryReport("ann", ReplyAddress("0" * 32, number), 1, 1, 0.0)


class ResponderHarness:
    """A responder with manual time, whose Redis may be slow, or fail."""

    def __init__(self) -> None:
        self.now = 50.0
        self.calls: list[list[AnswerField]] = []
        self.failures: list[Exception] = []
        self.calls_started = 0
        self.is_slow = False
        self.faults = Faults()
        self.responder = AnswerQueue(
            {QuestionKind.EXPLAIN: self.explain},
            self,
            Clock(lambda: self.now),
            TrioRuntime(),
            node=lambda: "n1",
            faults=self.faults,
        )

    def write(self, answers: Sequence[AnswerField]) -> None:
        self.calls_started += 1
        while self.is_slow:
            let_others_run()
        if self.failures:
            raise self.failures.pop()
        self.calls.append([*answers])

    def explain(self, uid: str) -> object:
        if uid == BROKEN.uid:
            raise LookupError("no such figure")
        return {"uid": uid}

    def questions(self) -> tuple[int, ...]:
        return astuple(self.responder.questions)

    def reports(self) -> tuple[int, ...]:
        return astuple(self.responder.reports)

    async def settled(self) -> None:
        """Wait until each answer has its outcome."""

        def is_settled(counters: AnswerCounters) -> bool:
            due, *outcomes = astuple(counters)
            return bool(sum(outcomes) == due)

        await until(lambda: is_settled(self.responder.questions) and is_settled(self.responder.reports))


@pytest.fixture
async def harness(nursery: trio.Nursery) -> ResponderHarness:
    harness = ResponderHarness()
    nursery.start_soon(harness.responder.run)
    return harness


async def test_a_question_is_answered(harness: ResponderHarness) -> None:
    harness.responder.answer([ANN])
    await harness.settled()
    ((answer,),) = harness.calls
    assert answer[:3] == ("ann", ANN.token, "n1")
    assert msgpack.unpackb(answer.value) == {"uid": "ann"}


async def test_many_reports_are_written_in_one_call_and_one_question(harness: ResponderHarness) -> None:
    count = 2 * MAX_ANSWERS_PER_CALL
    harness.responder.answer([ANN, ANN])
    for number in range(count):
        harness.responder.report(report(number))
    harness.responder.answer([ANN])
    await harness.settled()
    names = [answer.name for call in harness.calls for answer in call]
    assert names == ["n1", "n1", *(f"{number} n1" for number in range(count)), "n1"]
    assert list(map(len, harness.calls)) == [1, 1, MAX_ANSWERS_PER_CALL, MAX_ANSWERS_PER_CALL, 1]


async def test_questions_beyond_the_rate_are_dropped(harness: ResponderHarness) -> None:
    for _ in range(int(MAX_QUESTIONS_PER_S) + 20):
        harness.responder.answer([ANN])
    await harness.settled()
    assert harness.questions() == (120, 100, 20, 0)
    harness.now += 0.1
    harness.responder.answer([ANN] * 20)
    await harness.settled()
    assert harness.questions() == (140, 110, 30, 0)


async def test_a_slow_redis_bounds_the_queue_and_late_answers_are_dropped(harness: ResponderHarness) -> None:
    harness.is_slow = True
    harness.responder.report(report(0))
    await until(lambda: harness.calls_started)
    harness.responder.answer([ANN])
    for number in range(MAX_QUEUED_ANSWERS + 2):
        harness.responder.report(report(number))
    assert harness.reports() == (MAX_QUEUED_ANSWERS + 3, 0, 3, 0)
    harness.now += ANSWER_TIMEOUT_S + 0.1
    harness.is_slow = False
    await harness.settled()
    assert harness.reports() == (MAX_QUEUED_ANSWERS + 3, 1, MAX_QUEUED_ANSWERS + 2, 0)
    assert harness.questions() == (1, 0, 1, 0)


async def test_answers_that_redis_does_not_take_are_counted_and_later_ones_written(
    harness: ResponderHarness,
) -> None:
    for error in (StoreUnavailable("away"), StoreError("refused"), LookupError("a mistake")):
        harness.failures.append(error)
        harness.responder.report(report(1))
        await harness.settled()
    harness.responder.report(report(2))
    await harness.settled()
    assert [[each.name for each in call] for call in harness.calls] == [["2 n1"]]
    assert harness.reports() == (4, 1, 0, 3)
    assert harness.faults.counts == {"delivery report": 1}


async def test_questions_that_fail_are_rate_limited_in_the_log_and_end_no_task(
    harness: ResponderHarness,
) -> None:
    with structlog.testing.capture_logs() as logs:
        harness.responder.answer([BROKEN] * 50)
        await harness.settled()
        harness.responder.answer([ANN])
        await harness.settled()
    assert harness.questions() == (51, 1, 0, 50)
    failures = [line for line in logs if line["log_level"] != "debug"]
    assert 1 <= len(failures) < 10, "one line a second"
    assert {line["event"] for line in failures} == {"explain request failed"}
