"""Turning as a task of trio, for a server; Redis is asked in a thread of its own."""

from dataclasses import asdict

import structlog
import trio

from presence.followups.scheduler import RETRY_MAX_S, FollowUpScheduler, SchedulerOutage

log = structlog.get_logger("presence.followups")


class SchedulerTask:
    """Turns until it is stopped; the turner is used by nobody else, and closed at the end."""

    def __init__(self, scheduler: FollowUpScheduler) -> None:
        self._scheduler = scheduler
        self._scope = trio.CancelScope()
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Turn; an outage of Redis is told once, and waited for."""
        outage, run_once = SchedulerOutage(), self._scheduler.run_once
        with self._scope:
            try:
                while True:
                    try:
                        wait_s = await trio.to_thread.run_sync(
                            run_once, abandon_on_cancel=True, limiter=self._limiter
                        )
                    except Exception:  # whatever goes wrong here is no reason to end a server
                        log.exception("turning follow-ups failed")
                        wait_s = RETRY_MAX_S
                    if message := outage.log_message(self._scheduler.failure):
                        log.warning(message)
                    await trio.sleep(wait_s)
            finally:
                self._scheduler.close()  # and so ends a thread that was left behind

    def stop(self) -> None:
        """End it; what it has not done another does."""
        self._scope.cancel()

    def report(self) -> dict[str, int]:
        """Return its figures, for the log."""
        return asdict(self._scheduler.counters)
