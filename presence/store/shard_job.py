"""What the scheduler of follow-ups and the projector of rooms share: runs, and what they do about failures.

Tests: `tests/followups/test_run_scheduler.py`, `tests/rooms/test_projector.py`.
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol

from presence.common.backoff import backoff_s, jittered
from presence.common.errors import StoreError, StoreUnavailable
from presence.store.keys import Keys
from presence.store.records import number_of_shards
from presence.store.script_runner import Scripting

META_POLL_INTERVAL_S: Final = 1.0  # until the first server has stored the number of shards
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0  # between two attempts while Redis is unreachable


class FailureCounter(Protocol):
    """Counters, one of which is that of failed calls."""

    failures: int


class ShardJob(ABC):
    """Does in each shard what is due there. Used from one thread at a time; calls block.

    Args:
        scripting: its own.
        prefix: of the keys.
        shards: number of shards; None: as stored by a server.
        failures: counts failed calls.

    Attributes:
        failure: an error of the last run, or None.
    """

    def __init__(
        self, scripting: Scripting, prefix: str, shards: int | None, failures: FailureCounter
    ) -> None:
        self.failure: Exception | None = None
        self._scripting = scripting
        self._prefix = prefix
        self._shards = shards
        self._failures = failures
        self._failed_runs = 0  # in a row

    def run_once(self) -> float:
        """Do what is due in each shard; return the seconds until more is.

        A failed call is counted, kept in `failure` and repeated later: nothing is lost.
        """
        self.failure = None
        try:
            self._shards = self._shards or stored_number_of_shards(self._scripting, self._prefix)
        except (StoreUnavailable, StoreError) as error:
            self._note_failure(error)
            return self._retry_s()
        if self._shards is None:
            return META_POLL_INTERVAL_S
        pause_s = self._run(self._shards)
        self._failed_runs = self._failed_runs if self.failure else 0
        return pause_s

    @abstractmethod
    def _run(self, shards: int) -> float:
        """Do the same once the number of shards is known."""

    def close(self) -> None:
        """Close the connections; a call in another thread fails."""
        self._scripting.close()

    def _note_failure(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self._failed_runs += 1
        self._failures.failures += 1

    def _retry_s(self) -> float:
        return jittered(backoff_s(self._failed_runs - 1, RETRY_FIRST_S, RETRY_MAX_S))


def stored_number_of_shards(scripting: Scripting, prefix: str) -> int | None:
    """Return the number of shards; None before a server has stored it.

    Raises:
        StoreUnavailable, StoreError: Redis does not answer, or what is stored is damaged.
    """
    meta = Keys(prefix).meta
    (stored,) = scripting.commands(meta, [("HGET", meta, "shards")])
    try:
        return number_of_shards(meta, stored)
    except ValueError as error:
        raise StoreError(str(error)) from error
