"""Reports on messages of backends: written in order and together, within bounds."""

from collections.abc import Sequence
from dataclasses import astuple

import pytest
import trio

from presence.common.clock import Clock
from presence.common.errors import StoreUnavailable
from presence.common.loop_calls import let_others_run
from presence.common.runtime import TrioRuntime
from presence.messaging.letters import ReplyAddress, Report
from presence.server.delivery_reports import (
    MAX_QUEUED_REPORTS,
    MAX_REPORTS_PER_CALL,
    REPORT_TIMEOUT_S,
    DeliveryReporter,
)
from tests.support.waiting import until


def report(number: int) -> Report:
    return Report("ann", ReplyAddress("0" * 32, number), 1, 1, 0.0)


class ReporterHarness:
    """A reporter with manual time, whose Redis may be slow, or fail."""

    def __init__(self) -> None:
        self.now = 50.0
        self.calls: list[list[int]] = []  # the numbers of the reports in each
        self.failures: list[Exception] = []
        self.calls_started = 0
        self.is_slow = False
        self.reporter = DeliveryReporter(self, Clock(lambda: self.now), TrioRuntime(), node=lambda: "n1")

    def write(self, node: str, reports: Sequence[Report]) -> None:
        self.calls_started += 1
        while self.is_slow:
            let_others_run()
        if self.failures:
            raise self.failures.pop()
        self.calls.append([each.reply_to.number for each in reports])

    def figures(self) -> tuple[int, ...]:
        return astuple(self.reporter.statistics)

    async def settled(self) -> None:
        """Wait until each report has its outcome."""
        await until(lambda: sum(self.figures()[1:]) == self.figures()[0])


@pytest.fixture
async def harness(nursery: trio.Nursery) -> ReporterHarness:
    harness = ReporterHarness()
    nursery.start_soon(harness.reporter.run)
    return harness


async def test_reports_are_written_in_order_and_many_in_one_call(harness: ReporterHarness) -> None:
    count = 2 * MAX_REPORTS_PER_CALL + 1
    for number in range(count):
        harness.reporter.enqueue(report(number))
    await harness.settled()
    assert [number for call in harness.calls for number in call] == list(range(count))
    assert list(map(len, harness.calls)) == [MAX_REPORTS_PER_CALL, MAX_REPORTS_PER_CALL, 1]


async def test_a_slow_redis_bounds_the_queue_and_late_reports_are_dropped(harness: ReporterHarness) -> None:
    harness.is_slow = True
    harness.reporter.enqueue(report(0))
    await until(lambda: harness.calls_started)
    for number in range(MAX_QUEUED_REPORTS + 3):
        harness.reporter.enqueue(report(number))
    assert harness.figures() == (MAX_QUEUED_REPORTS + 4, 0, 3, 0)
    harness.now += REPORT_TIMEOUT_S + 0.1
    harness.is_slow = False
    await harness.settled()
    assert harness.figures() == (MAX_QUEUED_REPORTS + 4, 1, MAX_QUEUED_REPORTS + 3, 0)


async def test_reports_that_redis_does_not_take_are_counted_and_later_ones_written(
    harness: ReporterHarness,
) -> None:
    for error in (StoreUnavailable("away"), LookupError("a mistake")):
        harness.failures.append(error)
        harness.reporter.enqueue(report(1))
        await harness.settled()
    harness.reporter.enqueue(report(2))
    await harness.settled()
    assert (harness.calls, harness.figures()) == ([[2]], (3, 1, 0, 2))
    assert harness.reporter.faults.counts == {"delivery report": 1}
