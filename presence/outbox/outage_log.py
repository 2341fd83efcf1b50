"""Log and counters of the failures of a relay, over all its shards; see also `presence.common.outage`."""

from collections.abc import Sequence

import structlog

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.outage import MAX_LOGGED_REFUSALS

_log = structlog.get_logger(__name__)

Failures = list[StoreUnavailable | StoreError]


def first_of(failures: Failures) -> StoreUnavailable | StoreError:
    """Return the failure to report: a refusal before an unreachable Redis."""
    return next((each for each in failures if isinstance(each, StoreError)), failures[0])


class Outages:
    """The failures of one node's relay, over all shards.

    Attributes:
        since: monotonic seconds since when a shard is unreachable; None while all answer.
        retries: rounds with a failure.
        errors: failures that a retry may not cure.
        last_error: the last failure's text; "" if there was none.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.retries = self.errors = 0
        self.last_error = ""
        self._refusals: set[str] = set()  # logged in this outage

    def record_round(
        self,
        failures: Failures,
        unavailable_since: Sequence[float],
        recovered: int,
        *,
        now: float,
        pending: int,
    ) -> None:
        """Count the failures of a round, and log its refusals and the start and end of an outage.

        Args:
            failures: of the round's calls.
            unavailable_since: of each shard that is still unavailable, monotonic seconds.
            recovered: number of shards that became available.
            now: monotonic seconds.
            pending: changes that Redis does not have yet.
        """
        self.retries += bool(failures)
        for error in failures:
            text = str(error)
            if isinstance(error, StoreError):
                self.errors += 1
                if text not in self._refusals:
                    _log.error("Redis refused", error=text, pending=pending)
                self._refusals = (
                    {*self._refusals, text} if len(self._refusals) < MAX_LOGGED_REFUSALS else {text}
                )
            self.last_error = text
        if unavailable_since and self.since is None:
            self.since = min(unavailable_since)
            if failures and isinstance(first_of(failures), StoreUnavailable):
                _log.warning(
                    "Redis unreachable", error=str(first_of(failures)), shards=len(unavailable_since)
                )
        elif not unavailable_since and self.since is not None:
            outage_s = round(now - self.since, 3)
            self.since, self._refusals = None, set()
            _log.warning("Redis reachable again", outage_s=outage_s, pending=pending, shards=recovered)
