"""The port to Redis that watching one shard needs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from presence.watching.user_states import EntryId, ShardSnapshot, UserEvent


class Subscribed(NamedTuple):
    """The subscription to a user is active."""

    uid: str


class Unsubscribed(NamedTuple):
    """The subscription to a user has ended."""

    uid: str


class Pong(NamedTuple):
    """Everything published before the `ping` with this position was received."""

    position: EntryId


ChannelMessage: TypeAlias = Subscribed | Unsubscribed | Pong | UserEvent


@dataclass(frozen=True, slots=True)
class Replay:
    """Part of the stream of a shard."""

    entries: Sequence[UserEvent]  # of the requested users, in order
    position: EntryId  # the id of the last entry covered
    size: int  # number of entries covered, of all users
    is_end: bool  # whether it reaches the end of the stream
    is_broken: bool = False  # entries after the requested position are gone, or the stream ends before it


class ShardChannel(Protocol):
    """The channels of users of one shard, and reads of its data on the same server.

    `open`, `receive` and `close` are called by one thread at a time, `snapshot`, `replay` and `check` by
    another; `update_subscriptions`, `ping` and `close` may be called by any, and never wait. What blocks
    raises `StoreUnavailable` or `StoreError`; after `close`, which also ends blocked calls, it does so until
    the next `open`.
    """

    def open(self) -> None:
        """Connect to the server that has the shard at present."""

    def receive(self) -> list[ChannelMessage]:
        """Wait for messages without a time limit; return all that have arrived, in order."""

    def update_subscriptions(self, subscribe: Sequence[str], unsubscribe: Sequence[str]) -> None:
        """Subscribe to and unsubscribe from users; `receive` confirms each."""

    def ping(self, position: EntryId) -> None:
        """Make `receive` return a `Pong` with this position, after everything published before."""

    def snapshot(self, uids: Sequence[str]) -> ShardSnapshot:
        """Read the states of some users, all at one moment."""

    def replay(self, after: EntryId, uids: Collection[str]) -> Replay:
        """Read part of the stream after an entry."""

    def check(self) -> EntryId:
        """Return the id of the last entry; fails unless the server is reachable and still has the shard."""

    def close(self) -> None:
        """Close the connections."""
