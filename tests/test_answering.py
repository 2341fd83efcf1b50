"""Questions of operators: each is answered once, at a bounded rate, and nobody waits for Redis."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest
import structlog
import trio

from presence.answering import PATIENCE_S, QUESTIONS_A_S, QUEUE_MAX, Answering
from presence.clock import Clock
from presence.questions import Question
from presence.runtime import TrioRuntime
from presence.store.batches import StoreError, StoreUnavailable

ANN = Question("ann", "0" * 32)
WAIT_S = 10.0


class FakeAnswers:
    """Keeps what is written; may be slow, or fail."""

    def __init__(self) -> None:
        self.written: list[tuple[Question, str, object]] = []
        self.failures: list[Exception] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.begun = 0
        self.closed = 0

    def write(self, question: Question, node: str, answer: bytes) -> None:
        self.begun += 1
        self.go_on.wait(WAIT_S)
        if self.failures:
            raise self.failures.pop()
        self.written.append((question, node, msgpack.unpackb(answer)))

    def close(self) -> None:
        self.closed += 1
        self.go_on.set()


class Desk:
    """An answering with time by hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.answers = FakeAnswers()
        self.answering = Answering(
            self.explain, self.answers, Clock(lambda: self.now), TrioRuntime(), node=lambda: "n1"
        )

    def explain(self, uid: str) -> object:
        if uid == "broken":
            raise LookupError(uid)
        return {"uid": uid}

    def figures(self) -> tuple[int, int, int, int]:
        found = self.answering.statistics()
        return found.asked, found.answered, found.dropped, found.failed

    async def settled(self) -> None:
        """Wait until each question has its outcome."""
        with trio.fail_after(WAIT_S):
            while sum(self.figures()[1:]) < self.figures()[0]:  # noqa: ASYNC110 - nothing rings
                await trio.sleep(0.001)


@asynccontextmanager
async def answering() -> AsyncIterator[Desk]:
    desk = Desk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.answering.run)
        yield desk
        nursery.cancel_scope.cancel()


async def test_a_question_is_answered() -> None:
    async with answering() as desk:
        desk.answering.take([ANN])
        await desk.settled()
    assert desk.answers.written == [(ANN, "n1", {"uid": "ann"})]
    assert desk.figures() == (1, 1, 0, 0)


async def test_between_questions_there_is_no_connection() -> None:
    async with answering() as desk:
        desk.answering.take([ANN, ANN])
        await desk.settled()
        with trio.fail_after(WAIT_S):
            while not desk.answers.closed:  # noqa: ASYNC110 - nothing rings
                await trio.sleep(0.001)
    assert len(desk.answers.written) == 2


async def test_questions_beyond_the_rate_are_dropped() -> None:
    async with answering() as desk:
        for _ in range(int(QUESTIONS_A_S) + 20):
            desk.answering.take([ANN])
            await desk.settled()
        assert desk.figures() == (120, 100, 20, 0)
        desk.now += 0.1
        desk.answering.take([ANN] * 20)
        await desk.settled()
    assert desk.figures() == (140, 110, 30, 0)


async def test_while_redis_is_slow_few_wait_and_who_waited_too_long_is_dropped() -> None:
    async with answering() as desk:
        desk.answers.go_on.clear()
        desk.answering.take([ANN])
        with trio.fail_after(WAIT_S):
            while not desk.answers.begun:  # noqa: ASYNC110 - nothing rings
                await trio.sleep(0.001)
        for _ in range(3):
            desk.now += 1
            desk.answering.take([ANN] * QUEUE_MAX)
        assert desk.figures() == (301, 0, 200, 0)
        desk.now += PATIENCE_S + 0.1
        desk.answers.go_on.set()
        await desk.settled()
    assert desk.figures() == (301, 1, 300, 0)


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreError("refused")])
async def test_an_answer_that_cannot_be_written_is_counted(failure: Exception) -> None:
    async with answering() as desk:
        desk.answers.failures = [failure]
        desk.answering.take([ANN, ANN])
        await desk.settled()
    assert desk.figures() == (2, 1, 0, 1)


async def test_what_cannot_be_told_ends_nobody() -> None:
    with structlog.testing.capture_logs() as logs:
        async with answering() as desk:
            desk.answering.take([Question("broken", "0" * 32), ANN])
            await desk.settled()
    assert desk.figures() == (2, 1, 0, 1)
    assert [line["event"] for line in logs] == ["explain request failed"]


async def test_a_flood_of_what_cannot_be_told_fills_no_log() -> None:
    with structlog.testing.capture_logs() as logs:
        async with answering() as desk:
            desk.answering.take([Question("broken", "0" * 32)] * 50)
            await desk.settled()
    assert desk.figures() == (50, 0, 0, 50)
    assert 1 <= len(logs) < 10, "one a second"
    assert logs[0]["exc_info"]
