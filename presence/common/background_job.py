"""Runs a job that calls Redis again and again, such as the scheduler of follow-ups, as a task of a server.

Tests: `tests/followups/test_run_scheduler.py`, `tests/followups/test_serve.py`.
"""

from dataclasses import asdict
from typing import Any, Protocol

import structlog
import trio

from presence.common.outage import Outage
from presence.common.runtime import Runtime

log = structlog.get_logger("presence.jobs")


class Job(Protocol):
    """Does what is due, in calls that block."""

    failure: Exception | None  # of the last run

    @property
    def counters(self) -> Any:
        """Counters so far: a dataclass."""

    def run_once(self) -> float:
        """Do what is due; return the seconds until more is."""

    def close(self) -> None:
        """Close the connections."""


class BackgroundJob:
    """Runs a job until stopped; owns it, and closes it at the end.

    Args:
        job: to run.
        outage: the log of its failed runs.
        runtime: where the task runs.
    """

    def __init__(self, job: Job, outage: Outage, runtime: Runtime) -> None:
        self._job = job
        self._outage = outage
        self._runtime = runtime
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Run the job; an outage of Redis is logged once, and waited for."""
        caller = self._runtime.loop_caller()
        with self._scope:
            try:
                while True:
                    try:
                        wait_s = await caller.call(self._job.run_once)
                    except Exception:  # no error here may end the server
                        log.exception("background job failed", job=type(self._job).__name__)
                        wait_s = self._outage.limit_s
                    else:
                        if failure := self._job.failure:
                            self._outage.failed("run", failure)
                        else:
                            self._outage.worked("run")
                    await self._runtime.sleep(wait_s)
            finally:
                self._job.close()

    def stop(self) -> None:
        """Stop; the jobs of other processes continue."""
        self._scope.cancel()

    def report(self) -> dict[str, Any]:
        """Return its counters, for the log."""
        return asdict(self._job.counters)
