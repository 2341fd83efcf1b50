"""What the watch over one shard needs of Redis."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from presence.watching.states import EntryId, ShardSnapshot, UserEvent


class Subscribed(NamedTuple):
    """The subscription to a user stands."""

    uid: str


class Unsubscribed(NamedTuple):
    """The subscription to a user has ended."""

    uid: str


class Pong(NamedTuple):
    """All that happened before `ping` was called with this has been heard."""

    position: EntryId


ChannelMessage: TypeAlias = Subscribed | Unsubscribed | Pong | UserEvent


@dataclass(frozen=True, slots=True)
class Replay:
    """A part of a shard's stream."""

    entries: Sequence[UserEvent]  # of the users who were asked for, in order
    position: EntryId  # the id up to which it goes
    size: int  # how many entries that were, of all users
    is_end: bool  # whether that was the end of the stream
    is_broken: bool = False  # entries after the position that was asked for are gone, or it ends before it


class ShardChannel(Protocol):
    """The channels of users of one shard, and looks at its data on the same server.

    `open`, `receive` and `close` are for one thread at a time, `snapshot`, `replay` and `check` for another;
    `update_subscriptions`, `ping` and `close` may be called by any, and never wait. What blocks raises
    `StoreUnavailable` or `StoreError`; after `close`, which also ends blocked calls, it does so until
    the next `open`.
    """

    def open(self) -> None:
        """Connect to the server that has the shard now."""

    def receive(self) -> list[ChannelMessage]:
        """Wait until something is heard, however long; return all that is there, in order."""

    def update_subscriptions(self, subscribe: Sequence[str], unsubscribe: Sequence[str]) -> None:
        """Subscribe to users and unsubscribe from others; `receive` confirms each."""

    def ping(self, position: EntryId) -> None:
        """Let `receive` return a `Pong` with this position, after all that was published before."""

    def snapshot(self, uids: Sequence[str]) -> ShardSnapshot:
        """Look at some users, all at one moment."""

    def replay(self, after: EntryId, uids: Collection[str]) -> Replay:
        """Read a part of what follows `after` in the stream."""

    def check(self) -> EntryId:
        """Return the id of the last entry; fails unless the server is there and has the shard still."""

    def close(self) -> None:
        """Close the connections."""
