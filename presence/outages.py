"""What is counted and said of a Redis that fails: each outage once, and in it each refusal."""

from collections.abc import Sequence
from typing import Final

import structlog

from presence.reach import Reach
from presence.store.batches import StoreError, StoreUnavailable

REFUSALS_TOLD: Final = 16  # different ones in an outage; of more, some are told again

_log = structlog.get_logger(__name__)

Failures = list[StoreUnavailable | StoreError]


def first_of(failures: Failures) -> StoreUnavailable | StoreError:
    """Return the failure to be heard of: one that waiting may not cure goes first."""
    return next((each for each in failures if isinstance(each, StoreError)), failures[0])


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

    def __init__(self, reach: Sequence[Reach]) -> None:
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
                    _log.error("Redis refused", error=text, waiting=waiting)
                self._refusals = {*self._refusals, text} if len(self._refusals) < REFUSALS_TOLD else {text}
            self.last_error = text
        came_back = sum([reach.settle() for reach in self._reach])
        away = [reach.away_since for reach in self._reach if reach.away_since is not None]
        if away and self.since is None:
            self.since = min(away)
            if failures and isinstance(first_of(failures), StoreUnavailable):
                _log.warning("Redis is away", error=str(first_of(failures)), shards=len(away))
        elif not away and self.since is not None:
            away_s = round(now - self.since, 3)
            self.since, self._refusals = None, set()
            _log.info("Redis is back", away_s=away_s, waiting=waiting, shards=came_back)
