"""A worker answers over its stats socket and through Redis, once and at a bounded rate."""

from dataclasses import astuple

import msgpack
import pytest
import structlog
import trio

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.loop_calls import let_others_run
from presence.common.runtime import TrioRuntime
from presence.outbox.replies import Question
from presence.server.stats_socket import (
    ANSWER_TIMEOUT_S,
    MAX_QUESTIONS_PER_S,
    MAX_QUEUED_QUESTIONS,
    ExplainResponder,
    StatsResponder,
    question,
    stats_socket_pair,
)
from tests.support.waiting import until

ANN, BROKEN = Question("ann", "0" * 32), Question("broken", "0" * 32)
WAIT_S = 30.0


def fail() -> object:
    raise LookupError("no such figure")


async def test_failing_stats_requests_are_rate_limited_in_the_log_and_end_no_task() -> None:
    asking, answering = stats_socket_pair()
    with asking, answering, structlog.testing.capture_logs() as logs:
        responder = StatsResponder(answering, {"fail": fail, "work": lambda: 7})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(responder.run)
            line = trio.socket.from_stdlib_socket(asking)
            for number in range(20):
                await line.send(question(number, "fail", {}))
            unknown, wrong = question(20, "nothing", {}), question(21, "work", {"a": 1})
            for question_bytes in (b"", b"\xc1", b"\x91" * 2_000, unknown, wrong, question(22, "work", {})):
                await line.send(question_bytes)
            with trio.fail_after(WAIT_S):
                assert msgpack.unpackb(await line.recv(100)) == [22, 7]
            nursery.cancel_scope.cancel()
    assert responder.asked == 26
    assert {line["event"] for line in logs} == {"stats request failed"}
    assert len(logs) < 10, "one line a second"


class ResponderHarness:
    """An explain responder with manual time, and a mailbox that may be slow, or fail."""

    def __init__(self) -> None:
        self.now = 50.0
        self.written: list[tuple[Question, str, object]] = []
        self.failures: list[Exception] = []
        self.is_slow = False
        self.writes_started = self.closed = 0
        clock = Clock(lambda: self.now)
        self.answering = ExplainResponder(self.explain, self, clock, TrioRuntime(), node=lambda: "n1")

    def write(self, question: Question, node: str, answer: bytes) -> None:
        self.writes_started += 1
        while self.is_slow:
            let_others_run()
        if self.failures:
            raise self.failures.pop()
        self.written.append((question, node, msgpack.unpackb(answer)))

    def close(self) -> None:
        self.closed += 1

    def explain(self, uid: str) -> object:
        return fail() if uid == BROKEN.uid else {"uid": uid}

    def figures(self) -> tuple[int, ...]:
        return astuple(self.answering.statistics)

    async def settled(self) -> None:
        """Wait until each question has its outcome."""
        await until(lambda: sum(self.figures()[1:]) == self.figures()[0])


@pytest.fixture
async def harness(nursery: trio.Nursery) -> ResponderHarness:
    harness = ResponderHarness()
    nursery.start_soon(harness.answering.run)
    return harness


async def test_question_is_answered_and_the_connection_closed(harness: ResponderHarness) -> None:
    harness.answering.enqueue([ANN, ANN])
    await harness.settled()
    await until(lambda: harness.closed)
    assert harness.written == [(ANN, "n1", {"uid": "ann"})] * 2


async def test_questions_beyond_the_rate_are_dropped(harness: ResponderHarness) -> None:
    for _ in range(int(MAX_QUESTIONS_PER_S) + 20):
        harness.answering.enqueue([ANN])
        await harness.settled()
    assert harness.figures() == (120, 100, 20, 0)
    harness.now += 0.1
    harness.answering.enqueue([ANN] * 20)
    await harness.settled()
    assert harness.figures() == (140, 110, 30, 0)


async def test_slow_redis_bounds_the_queue_and_drops_old_questions(harness: ResponderHarness) -> None:
    harness.is_slow = True
    harness.answering.enqueue([ANN])
    await until(lambda: harness.writes_started)
    for _ in range(3):
        harness.now += 1
        harness.answering.enqueue([ANN] * MAX_QUEUED_QUESTIONS)
    assert harness.figures() == (301, 0, 200, 0)
    harness.now += ANSWER_TIMEOUT_S + 0.1
    harness.is_slow = False
    await harness.settled()
    assert harness.figures() == (301, 1, 300, 0)


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreError("refused")])
async def test_failed_answers_are_counted_and_rate_limited_in_the_log_and_end_no_task(
    harness: ResponderHarness, failure: Exception
) -> None:
    with structlog.testing.capture_logs() as logs:
        harness.answering.enqueue([BROKEN] * 50)
        await harness.settled()
        harness.failures = [failure]
        harness.answering.enqueue([ANN, ANN])
        await harness.settled()
    assert harness.figures() == (52, 1, 0, 51)
    failures = [line for line in logs if line["log_level"] != "debug"]
    assert 1 <= len(failures) < 10, "one line a second"
    assert {line["event"] for line in failures} == {"explain request failed"}
