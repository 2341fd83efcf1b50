"""Log and counters of Redis failures: each outage is logged once, and in it each distinct refusal."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import structlog

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.errors import StoreError, StoreUnavailable

MAX_LOGGED_REFUSALS: Final = 16  # distinct ones remembered in an outage; beyond it some are logged again

_log = structlog.get_logger(__name__)

Failures = list[StoreUnavailable | StoreError]


def first_of(failures: Failures) -> StoreUnavailable | StoreError:
    """Return the failure to report: a refusal before an unreachable Redis."""
    return next((each for each in failures if isinstance(each, StoreError)), failures[0])


@dataclass(eq=False, repr=False)
class Outage:
    """Logs failing calls: an outage once, each new refusal in it, and its end when all calls work again."""

    log: Any  # a structlog logger, or an object with its methods
    _: KW_ONLY
    unreachable: str  # event when Redis cannot be reached; "": not logged
    refused: str  # event when it refuses, or after another error
    recovered: str  # event when all calls work again; "": not logged
    first_s: float  # the first pause before another attempt
    limit_s: float  # the longest pause

    def __post_init__(self) -> None:
        self._failures: dict[str, int] = {}  # consecutive failures of each kind of call that fails now
        self._logged: set[str] = set()

    def failed(self, call: str, error: Exception) -> float:
        """Log a failure; return the pause before the next attempt, with jitter.

        Args:
            call: the kind of call that failed; others may work meanwhile.
            error: the failure.
        """
        failures = self._failures.get(call, 0)
        self._failures[call] = failures + 1
        refusal = "" if isinstance(error, StoreUnavailable) else str(error)
        if refusal not in self._logged:
            self._logged = {refusal} if len(self._logged) >= MAX_LOGGED_REFUSALS else {*self._logged, refusal}
            if refusal:
                self.log.error(self.refused, error=refusal)
            elif self.unreachable:
                self.log.warning(self.unreachable, error=str(error))
        return jittered(backoff_s(failures, self.first_s, self.limit_s))

    def worked(self, call: str) -> None:
        """Note that a kind of call works."""
        self._failures.pop(call, None)
        if self._logged and not self._failures:
            self._logged.clear()
            if self.recovered:
                self.log.warning(self.recovered)


class Outages:
    """The failures of one node's relay, over all shards.

    Args:
        breakers: of all shards.

    Attributes:
        since: monotonic seconds since when a shard is unreachable; None while all answer.
        retries: rounds with a failure.
        errors: failures that a retry may not cure.
        last_error: the last failure's text; "" if there was none.
    """

    def __init__(self, breakers: Sequence[CircuitBreaker]) -> None:
        self._breakers = breakers
        self.since: float | None = None
        self.retries = self.errors = 0
        self.last_error = ""
        self._refusals: set[str] = set()  # logged in this outage

    def record_round(self, failures: Failures, now: float, waiting: int) -> None:
        """Count and log the failures of a round; `waiting`: changes that Redis does not have yet."""
        self.retries += bool(failures)
        for error in failures:
            text = str(error)
            if isinstance(error, StoreError):
                self.errors += 1
                if text not in self._refusals:
                    _log.error("Redis refused", error=text, pending=waiting)
                self._refusals = (
                    {*self._refusals, text} if len(self._refusals) < MAX_LOGGED_REFUSALS else {text}
                )
            self.last_error = text
        recovered = sum([each.confirm_recovery() for each in self._breakers])
        since = [each.unavailable_since for each in self._breakers if each.unavailable_since is not None]
        if since and self.since is None:
            self.since = min(since)
            if failures and isinstance(first_of(failures), StoreUnavailable):
                _log.warning("Redis unreachable", error=str(first_of(failures)), shards=len(since))
        elif not since and self.since is not None:
            outage_s = round(now - self.since, 3)
            self.since, self._refusals = None, set()
            _log.info("Redis reachable again", outage_s=outage_s, pending=waiting, shards=recovered)
