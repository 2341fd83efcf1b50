"""Runs the scheduler of follow-ups as a trio task, for a server; calls of Redis run in a thread."""

from dataclasses import asdict

import structlog
import trio

from presence.common.runtime import run_in_thread
from presence.common.threads import NoThread
from presence.followups.scheduler import RETRY_MAX_S, FollowUpScheduler, SchedulerOutage

log = structlog.get_logger("presence.followups")


class SchedulerTask:
    """Runs a scheduler until stopped; owns it, and closes it at the end."""

    def __init__(self, scheduler: FollowUpScheduler) -> None:
        self._scheduler = scheduler
        self._scope = trio.CancelScope()
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Run the scheduler; an outage of Redis or a lack of threads is logged once, and waited for."""
        outage, run_once = SchedulerOutage(), self._scheduler.run_once
        with self._scope:
            try:
                while True:
                    failure: Exception | None
                    try:
                        wait_s = await run_in_thread(run_once, self._limiter)
                        failure = self._scheduler.failure
                    except NoThread as error:
                        failure, wait_s = error, RETRY_MAX_S
                    except Exception:  # no error here may end the server
                        log.exception("follow-up scheduler failed")
                        failure, wait_s = self._scheduler.failure, RETRY_MAX_S
                    if message := outage.log_message(failure):
                        log.warning(message, **({"error": str(failure)} if failure else {}))
                    await trio.sleep(wait_s)
            finally:
                self._scheduler.close()  # which also ends an abandoned thread

    def stop(self) -> None:
        """Stop; other schedulers continue."""
        self._scope.cancel()

    def report(self) -> dict[str, int]:
        """Return its counters, for the log."""
        return asdict(self._scheduler.counters)
