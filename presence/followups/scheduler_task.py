"""Runs the scheduler of follow-ups as a trio task, for a server.

Tests: `tests/followups/test_run_scheduler.py`, `tests/followups/test_serve.py`.
"""

from dataclasses import asdict

import structlog
import trio

from presence.common.runtime import LoopCaller
from presence.followups.run_scheduler import RETRY_MAX_S, FollowUpScheduler, scheduler_outage

log = structlog.get_logger("presence.followups")


class SchedulerTask:
    """Runs a scheduler until stopped; owns it, and closes it at the end."""

    def __init__(self, scheduler: FollowUpScheduler) -> None:
        self._scheduler = scheduler
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Run the scheduler; an outage of Redis is logged once, and waited for."""
        caller, outage = LoopCaller(), scheduler_outage(log)
        with self._scope:
            try:
                while True:
                    try:
                        wait_s = await caller.call(self._scheduler.run_once)
                    except Exception:  # no error here may end the server
                        log.exception("follow-up scheduler failed")
                        wait_s = RETRY_MAX_S
                    else:
                        if failure := self._scheduler.failure:
                            outage.failed("run", failure)
                        else:
                            outage.worked("run")
                    await trio.sleep(wait_s)
            finally:
                self._scheduler.close()

    def stop(self) -> None:
        """Stop; other schedulers continue."""
        self._scope.cancel()

    def report(self) -> dict[str, int]:
        """Return its counters, for the log."""
        return asdict(self._scheduler.counters)
