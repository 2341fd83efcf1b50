"""Turning as a task of trio, for a server; Redis is asked in a thread of its own."""

from dataclasses import asdict

import structlog
import trio

from presence.followups.turning import RETRY_MAX_S, FollowUpScheduler, SchedulerOutage

log = structlog.get_logger("presence.followups")


class SchedulerTask:
    """Turns until it is stopped; the turner is used by nobody else, and closed at the end."""

    def __init__(self, turner: FollowUpScheduler) -> None:
        self._turner = turner
        self._scope = trio.CancelScope()
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Turn; an outage of Redis is told once, and waited for."""
        outage, turn = SchedulerOutage(), self._turner.turn
        with self._scope:
            try:
                while True:
                    try:
                        wait_s = await trio.to_thread.run_sync(
                            turn, abandon_on_cancel=True, limiter=self._limiter
                        )
                    except Exception:  # whatever goes wrong here is no reason to end a server
                        log.exception("follow-up scheduler failed")
                        wait_s = RETRY_MAX_S
                    failure = self._turner.failure
                    if news := outage.news(failure):
                        log.warning(news, **({"error": str(failure)} if failure else {}))
                    await trio.sleep(wait_s)
            finally:
                self._turner.close()  # and so ends a thread that was left behind

    def stop(self) -> None:
        """End it; what it has not done another does."""
        self._scope.cancel()

    def report(self) -> dict[str, int]:
        """Return its figures, for the log."""
        return asdict(self._turner.tally)
