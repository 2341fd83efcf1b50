"""What a subscription reads: the interface of followers, snapshots and consumers of a group.

Tests: `tests/subscriber/test_follower.py`, `tests/subscriber/test_group.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import ClassVar, Generic, TypeVar

from presence.subscriber.redis_connections import RedisConnections

EntryKey = tuple[int, str]  # shard and entry id
Raw = TypeVar("Raw")


class Source(ABC, Generic[Raw]):
    """Items in order. `fetch`, `hand_out`, `flush` and `stop` block, and may run in a thread.

    `ack`, `nak` and `give_up` may be called from any thread; the others from one at a time. Without a group
    nothing is acknowledged or delivered again, and there are no dead letters: most methods do nothing.

    Attributes:
        is_group: whether entries are settled.
    """

    is_group: ClassVar[bool] = False

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections  # used by this source only

    @property
    def has_work(self) -> bool:
        """Whether `fetch` has to be called before `next`."""
        return True

    @abstractmethod
    def fetch(self) -> None:
        """Send what was settled and read items, perhaps none after a while. Call it again if it fails.

        Raises:
            RedisError: the call failed.
            ValueError: Redis does not hold data of a presence server.
            ConsumerInUse: another live consumer of the group has the same name.
        """

    @abstractmethod
    def next(self) -> Raw | None:
        """Take the next item that is ready, for `hand_out` or `skip`."""

    def skip(self, item: Raw) -> None:
        """The item just taken is not handed out: acknowledge it with the next call."""

    def hand_out(self) -> bool:
        """Send what was settled, and count the items taken as delivered; they are in the program's hands now.

        Returns:
            Whether they are. If not, or if it fails, they are taken again later.

        Raises:
            RedisError: the call failed.
        """
        return True

    def flush(self) -> None:
        """Send only what was settled; raises `RedisError`."""

    def stop(self, *, keeps_handed_out: bool, unseen: Iterable[EntryKey] = ()) -> None:
        """Send what was settled, and hand everything else back to the group: the next reader begins with it.

        Args:
            keeps_handed_out: whether what was handed out can still be settled.
            unseen: what was handed out and never reached the program: it does not count.

        Raises:
            RedisError: the call failed; other consumers get the entries after `claim_idle_s`.
        """

    def close(self) -> None:
        """Close the connections, from any thread. The position is kept; what is pending stays pending."""
        self._connections.close()

    @property
    def redis(self) -> str:
        """The name of Redis in the log."""
        return self._connections.name

    def ack(self, key: EntryKey) -> None:
        """The entry was handled: acknowledge it."""

    def ack_all(self, but: Collection[EntryKey]) -> None:
        """Acknowledge everything that was handed out, except some."""

    def nak(self, key: EntryKey, delay_s: float, error: str | None) -> None:
        """The entry was not handled, for this reason: deliver it again after so many seconds."""

    def give_up(self, key: EntryKey, error: str) -> None:
        """Make the entry a dead letter, for this reason."""

    def rewind(self, but: Collection[EntryKey]) -> None:
        """The loop was left and is entered again: deliver again what was handed out, except some."""

    def note_error(self, error: str) -> None:
        """The loop was left because of this error: keep it for dead letters."""
