"""What is counted and said of a Redis that fails: each outage once, and in it each refusal."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import structlog

from presence.common.backoff import backoff_s, jittered
from presence.common.circuit_breaker import CircuitBreaker
from presence.common.errors import StoreError, StoreUnavailable

REFUSALS_TOLD: Final = 16  # different ones in an outage; of more, some are told again

_log = structlog.get_logger(__name__)

Failures = list[StoreUnavailable | StoreError]


def first_of(failures: Failures) -> StoreUnavailable | StoreError:
    """Return the failure to be heard of: one that waiting may not cure goes first."""
    return next((each for each in failures if isinstance(each, StoreError)), failures[0])


@dataclass(eq=False, repr=False)
class Outage:
    """Calls that fail: an outage is told once, in it each new refusal, and its end when all work again."""

    log: Any  # a structlog logger, or whatever has its methods
    _: KW_ONLY
    away: str  # what is said when Redis cannot be reached; "" for nothing
    refused: str  # what is said when it refuses, or something else is wrong
    back: str  # what is said when all works again; "" for nothing
    first_s: float  # the first pause before another attempt
    limit_s: float  # and the longest

    def __post_init__(self) -> None:
        self._failures: dict[str, int] = {}  # in a row, of each kind of call that fails at present
        self._told: set[str] = set()

    def failed(self, call: str, error: Exception) -> float:
        """Take note of a failure; return how long to wait before the next attempt, with jitter.

        Args:
            call: which kind of call failed; others may work meanwhile.
            error: why.
        """
        failures = self._failures.get(call, 0)
        self._failures[call] = failures + 1
        refusal = "" if isinstance(error, StoreUnavailable) else str(error)
        if refusal not in self._told:
            self._told = {refusal} if len(self._told) >= REFUSALS_TOLD else {*self._told, refusal}
            if refusal:
                self.log.error(self.refused, error=refusal)
            elif self.away:
                self.log.warning(self.away, error=str(error))
        return jittered(backoff_s(failures, self.first_s, self.limit_s))

    def worked(self, call: str) -> None:
        """Take note of a call that did not fail."""
        self._failures.pop(call, None)
        if self._told and not self._failures:
            self._told.clear()
            if self.back:
                self.log.warning(self.back)


class Outages:
    """The failures of one node's relay, over all shards.

    Args:
        reach: of all shards.

    Attributes:
        since: monotonic seconds since when a shard is away; None while all answer.
        retries: rounds in which something failed.
        errors: failures that waiting may not cure.
        last_error: the last failure's text; "" if there was none.
    """

    def __init__(self, reach: Sequence[CircuitBreaker]) -> None:
        self._reach = reach
        self.since: float | None = None
        self.retries = self.errors = 0
        self.last_error = ""
        self._refusals: set[str] = set()  # told in this outage

    def note(self, failures: Failures, now: float, waiting: int) -> None:
        """Take what a round came to; `waiting`: changes that Redis does not have yet."""
        self.retries += bool(failures)
        for error in failures:
            text = str(error)
            if isinstance(error, StoreError):
                self.errors += 1
                if text not in self._refusals:
                    _log.error("Redis refused", error=text, pending=waiting)
                self._refusals = {*self._refusals, text} if len(self._refusals) < REFUSALS_TOLD else {text}
            self.last_error = text
        came_back = sum([reach.settle() for reach in self._reach])
        away = [reach.away_since for reach in self._reach if reach.away_since is not None]
        if away and self.since is None:
            self.since = min(away)
            if failures and isinstance(first_of(failures), StoreUnavailable):
                _log.warning("Redis unreachable", error=str(first_of(failures)), shards=len(away))
        elif not away and self.since is not None:
            outage_s = round(now - self.since, 3)
            self.since, self._refusals = None, set()
            _log.info("Redis reachable again", outage_s=outage_s, pending=waiting, shards=came_back)
