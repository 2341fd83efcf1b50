"""Reports on messages whose senders are no nodes, written to Redis for these senders.

A message is delivered whatever becomes of its report: reports wait in a bounded queue, and those
beyond the bounds, or too late for anybody to wait for, are dropped and counted. The sender is then told that
the outcome is unknown.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Final, Protocol

import structlog

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.faults import Faults
from presence.common.runtime import Runtime
from presence.messaging.letters import Report

MAX_QUEUED_REPORTS: Final = 8192  # as many as messages that clients may have waiting: at most 8 MB
MAX_REPORTS_PER_CALL: Final = 256
REPORT_TIMEOUT_S: Final = 2.0  # by then the sender has given up

_log = structlog.get_logger(__name__)


class ReportChannel(Protocol):
    """Stores reports in Redis: blocking calls, one at a time."""

    def write(self, node: str, reports: Sequence[Report]) -> None:
        """Store reports of a node for the senders. Raises `StoreUnavailable` or `StoreError`."""


@dataclass(slots=True)
class ReportCounters:
    """Counters since the start; a report has at most one outcome."""

    due: int = 0  # messages that wanted one
    written: int = 0
    dropped: int = 0  # beyond the queue, or too late
    failed: int = 0  # Redis did not take them


@dataclass(eq=False, repr=False)
class DeliveryReporter:
    """Writes reports in the order of the messages, many in one call."""

    channel: ReportChannel  # used by this reporter only
    clock: Clock  # monotonic time
    runtime: InitVar[Runtime]  # runs the task
    _: KW_ONLY
    node: Callable[[], str]  # returns the current node id
    faults: Faults = field(default_factory=Faults)  # contains errors of a call

    def __post_init__(self, runtime: Runtime) -> None:
        self._bell = runtime.wake_event()
        self._redis = runtime.loop_caller()
        self._queue: deque[tuple[float, Report]] = deque()
        self.statistics = ReportCounters()

    def enqueue(self, report: Report) -> None:
        """Enqueue a report, or drop it beyond the bound; never waits."""
        self.statistics.due += 1
        if len(self._queue) >= MAX_QUEUED_REPORTS:
            self.statistics.dropped += 1
        else:
            self._queue.append((self.clock.now(), report))
            self._bell.set()

    async def run(self) -> None:
        """Write reports until cancelled."""
        while True:
            await self._bell.wait(math.inf)
            while self._queue:
                if reports := self._next_batch():
                    await self._write(reports)

    def _next_batch(self) -> list[Report]:
        """Return the next reports that are not too late."""
        now = self.clock.now()
        taken = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_REPORTS_PER_CALL))]
        wanted = [report for due_at, report in taken if now - due_at <= REPORT_TIMEOUT_S]
        self.statistics.dropped += len(taken) - len(wanted)
        return wanted

    async def _write(self, reports: list[Report]) -> None:
        try:
            await self._redis.call(partial(self.channel.write, self.node(), reports))
        except (StoreUnavailable, StoreError) as error:
            self.statistics.failed += len(reports)
            _log.debug("delivery reports not written", error=str(error))
        except Exception as error:  # a report that fails must not end the server
            self.statistics.failed += len(reports)
            self.faults.record("delivery report", error)
        else:
            self.statistics.written += len(reports)
