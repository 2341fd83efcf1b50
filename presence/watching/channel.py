"""The port to Redis that watches need: where shards are, and one channel to each server that has some.

Tests: `tests/watching/test_shard_placement.py`, `tests/store/test_watch_connection.py`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from presence.common.errors import StoreUnavailable
from presence.watching.user_states import EntryId, ShardSnapshot, UserEvent


class Subscribed(NamedTuple):
    """The subscription to a user is active."""

    uid: str


class Unsubscribed(NamedTuple):
    """The subscription to a user has ended."""

    uid: str


class ShardJoined(NamedTuple):
    """The subscription to all changes of a shard is active."""

    shard: int


class ShardChanges(NamedTuple):
    """All changes of a shard's users by one call of a script.

    Entries that this channel has not reported lie between two messages if `previous` is above `last` of the
    earlier one: they have to be read from the stream.
    """

    shard: int
    previous: EntryId  # the last entry of the stream before the call
    last: EntryId  # that after the call; not above `previous` if the call wrote no entry that is left
    changes: Sequence[tuple[str, bytes]]  # uids and packed events, in order, see `read_change`


class Pong(NamedTuple):
    """Everything that the server published or confirmed before the `ping` of this number was received."""

    number: int


ChannelMessage: TypeAlias = Subscribed | Unsubscribed | ShardJoined | ShardChanges | Pong | UserEvent


class ShardLost(StoreUnavailable):
    """The server answers, but refuses calls for one shard, which may have moved; others are not concerned."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Part of the stream of a shard."""

    entries: Sequence[UserEvent]  # of the requested users, in order
    position: EntryId  # the id of the last entry covered
    size: int  # number of entries covered, of all users
    is_end: bool  # whether it reaches the end of the stream
    is_broken: bool = False  # entries after the requested position are gone, or the stream ends before it


class ServerChannel(Protocol):
    """The channels of all shards of one server, or of their users, over one connection; reads over another.

    Methods run on the event loop, see `presence.common.loop_calls`. `receive` is called by one task, `open`
    and the reads by another, one at a time; `join`, `leave`, `update_subscriptions` and `ping` only queue
    what `receive` sends. What waits raises `StoreUnavailable` or `StoreError` when the server is lost: after
    that, and after `close`, until the next `open`. Reads raise `ShardLost` for a shard alone.
    """

    def open(self) -> None:
        """Connect to the server."""

    def receive(self) -> list[ChannelMessage]:
        """Wait for messages without a time limit; return some that have arrived, in order."""

    def join(self, shard: int, *, whole: bool) -> None:
        """Make changes of the shard's users be published.

        Args:
            shard: which has not joined, or has left.
            whole: whether to subscribe to all changes of the shard, which `receive` confirms; otherwise
                subscriptions to users follow.
        """

    def leave(self, shard: int) -> None:
        """End that. What was published before still arrives."""

    def update_subscriptions(self, subscribe: Sequence[str], unsubscribe: Sequence[str]) -> None:
        """Subscribe to and unsubscribe from users; `receive` confirms each."""

    def ping(self, number: int) -> None:
        """Make `receive` return a `Pong` with this number, after everything published before."""

    def snapshot(self, shard: int, uids: Sequence[str]) -> ShardSnapshot:
        """Read the states of some users, all at one moment."""

    def replay(self, shard: int, after: EntryId, uids: Container[str]) -> Replay:
        """Read part of the stream after an entry."""

    def check(self, shards: Sequence[int]) -> Mapping[int, EntryId | ShardLost]:
        """Return the id of the last entry of each shard; fails unless the server is a primary."""

    def close(self) -> None:
        """Close the connections; no call may be in progress."""


class ShardServers(Protocol):
    """The servers of all shards."""

    def locate(self, shards: Sequence[int], *, anew: bool) -> Mapping[int, str]:
        """Return the server of each shard; shards that no server has at present are left out.

        Args:
            shards: to locate.
            anew: whether what is known of them may be wrong.

        Raises:
            StoreUnavailable, StoreError: no server of a cluster says.
        """

    def channel(self, server: str) -> ServerChannel:
        """Return a new channel to a server."""
