"""What both faces, the one for trio and the blocking one, need from a source; and who reads in a group."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

Raw = TypeVar("Raw")


class Source(ABC, Generic[Raw]):
    """Items in order. `fetch` and `flush` block and may run in a thread; all else is called between them.

    Without a group nothing is acknowledged, nothing comes again, and there are no dead letters to tell an
    error to: so all but three methods do nothing.
    """

    @property
    def has_work(self) -> bool:
        """Whether `fetch` has something to do before `take` can give."""
        return True

    @abstractmethod
    def fetch(self) -> None:
        """Acknowledge what is settled; get items ready, or none after a while. Call again if it fails.

        Raises:
            RedisError: the call failed.
            ValueError: what Redis holds is no data of a presence server.
        """

    @abstractmethod
    def take(self) -> Raw | None:
        """Return the next item that is ready; it is then the present one. Never blocks."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; called from any thread. The place is kept."""

    def flush(self) -> None:
        """Acknowledge what is settled, and no more; raises `RedisError`."""

    def settle(self) -> None:
        """The present item was handled: it will be acknowledged with the next call."""

    def reenter(self) -> None:
        """The loop was left and is entered again: the present item was not handled, and comes again."""

    def fail(self, error: str) -> None:
        """The present item was not handled, for this reason: it comes again after `claim_idle_s`."""

    def leave(self, error: str) -> None:
        """The loop was left because of this error: the present item comes again when it is entered."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which consumer of which group, and how it treats what is not acknowledged.

    Attributes:
        group: the group; created when it is not there.
        consumer: this consumer's name. No two that live at once may share it; one that keeps its name over
            a restart goes on at once with what it had not acknowledged.
        max_deliveries: after so many an entry becomes a dead letter.
        claim_idle_s: an entry is taken from a consumer that was silent for so long; a handler must be
            faster, or others get the same event.
        prefetch: entries read ahead, over all shards.
    """

    group: str
    consumer: str
    max_deliveries: int = 5
    claim_idle_s: float = 60.0
    prefetch: int = 100

    def __post_init__(self) -> None:
        if not (self.group and self.consumer):
            raise ValueError("a consumer group needs the names of group and consumer")
        if self.max_deliveries < 1 or self.prefetch < 1 or self.claim_idle_s <= 0:
            raise ValueError("max_deliveries, prefetch and claim_idle_s must be above zero")
