"""The channels of watched users on one Redis server, for all its shards, on the event loop.

One connection is subscribed, another reads, to the same server: messages and reads then have one order, that
of the entry ids. What others queue to be sent, the task sends that receives, so that a failure to send ends
no wait of another task.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgpack

from presence.common.errors import StoreError, StoreUnavailable
from presence.common.loop_calls import Wait, Waker, ask_loop
from presence.store.cluster_routes import Connect, Routes
from presence.store.error_classes import as_failure, calling, is_of_slot
from presence.store.keys import Keys
from presence.store.redis_client import Redis, RedisError, ResponseError, open_client, read_arrived
from presence.store.watch_reads import (
    forgotten_before_ms,
    read_last_ids,
    read_replay,
    read_snapshot,
)
from presence.watching.channel import (
    ChannelMessage,
    Pong,
    Replay,
    ServerChannel,
    ShardChanges,
    ShardJoined,
    ShardLost,
    Subscribed,
    Unsubscribed,
)
from presence.watching.user_states import EntryId, ShardSnapshot, id_of, read_hint

T = TypeVar("T")

# Parsed and applied without a turn for other tasks: some milliseconds. A message has up to 512 changes of a
# shard, so bytes are counted, too, after each few messages.
MAX_MESSAGES_PER_READ: Final = 100
MAX_BYTES_PER_READ: Final = 131_072  # of such messages: some 800 changes
MESSAGES_PER_COUNT: Final = 4


class WatchServers:
    """Where shards are; see `presence.watching.channel.ShardServers`.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        keys: channel names.
        connect: makes the client of one server.
        detail: whether to read the devices of users.
        retention_ms: for how long clients can see when an offline user was last seen.
    """

    def __init__(
        self,
        url: str,
        keys: Keys,
        connect: Connect = open_client,
        *,
        detail: bool = False,
        retention_ms: float = math.inf,
    ) -> None:
        self._routes = Routes(url, connect)
        self._keys = keys
        self._connect = connect
        self._detail = detail
        self._retention_ms = retention_ms

    def locate(self, shards: Sequence[int], *, anew: bool) -> dict[int, str]:
        if anew:
            self._routes.invalidate()
        with calling():
            found = self._routes.servers([self._keys.events(shard) for shard in shards])
        return {shard: server for shard, server in zip(shards, found, strict=True) if server is not None}

    def channel(self, server: str) -> ServerChannel:
        return WatchConnection(
            server, self._keys, self._connect, detail=self._detail, retention_ms=self._retention_ms
        )


class WatchConnection:
    """The channel to one server; see `presence.watching.channel.ServerChannel`.

    Args:
        server: its plain URL.
        keys, connect, detail, retention_ms: see `WatchServers`.
    """

    def __init__(
        self,
        server: str,
        keys: Keys,
        connect: Connect = open_client,
        *,
        detail: bool = False,
        retention_ms: float = math.inf,
    ) -> None:
        self._server = server
        self._keys = keys
        self._connect = connect
        self._detail = detail
        self._retention_ms = retention_ms
        # Before the shard's number in the names of all channels, and after it.
        self._head, self._tail = (each.encode() for each in keys.watchers_channel(0).rsplit("0", 1))
        self._whole: dict[bytes, int] = {}  # channels of all changes of a shard that was joined so
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose
        self._unsent: deque[tuple[str, ...]] = deque()
        self._failure: StoreUnavailable | StoreError | None = None  # found after messages, which come first
        self._waker = Waker()

    def open(self) -> None:
        self.close()
        with calling(self.close):
            self._client = self._connect(self._server)
            self._connection = self._client.connection_pool.get_connection()

    def receive(self) -> list[ChannelMessage]:
        heard: list[ChannelMessage] = []
        while not heard:
            if self._failure is not None:
                raise self._failure
            answers = self._read()
            heard = [found for each in answers if (found := self._message_of(each)) is not None]
            if not answers and self._failure is None:
                ask_loop(Wait(self._connection._sock, True, math.inf, self._waker))
        return heard

    def join(self, shard: int, *, whole: bool) -> None:
        changes = self._keys.changes_channel(shard)
        if whole:
            self._whole[changes.encode()] = shard
        # Scripts publish for no user of a shard whose own channel has no subscriber.
        self._send("SUBSCRIBE", changes if whole else self._keys.watchers_channel(shard))

    def leave(self, shard: int) -> None:
        changes = self._keys.changes_channel(shard)
        is_whole = self._whole.pop(changes.encode(), None) is not None
        self._send("UNSUBSCRIBE", changes if is_whole else self._keys.watchers_channel(shard))

    def update_subscriptions(self, subscribe: Sequence[str], unsubscribe: Sequence[str]) -> None:
        for command, uids in (("UNSUBSCRIBE", unsubscribe), ("SUBSCRIBE", subscribe)):
            if uids:
                self._send(command, *map(self._keys.user_channel, uids))

    def ping(self, number: int) -> None:
        self._send("PING", str(number))

    def snapshot(self, shard: int, uids: Sequence[str]) -> ShardSnapshot:
        read = partial(read_snapshot, keys=self._keys, shard=shard, uids=uids, detail=self._detail)
        return self._ask(shard, partial(read, forgotten_ms=forgotten_before_ms(self._retention_ms)))

    def replay(self, shard: int, after: EntryId, uids: Container[str]) -> Replay:
        return self._ask(shard, lambda client: read_replay(client, self._keys, shard, after, uids))

    def check(self, shards: Sequence[int]) -> Mapping[int, EntryId | ShardLost]:
        try:
            found = read_last_ids(self._opened(), self._keys, shards)
        except (RedisError, OSError) as error:
            raise as_failure(error) from error
        if found is None:
            raise StoreUnavailable("the server is no primary any more")
        answers: dict[int, EntryId | ShardLost] = {}
        for shard, answer in zip(shards, found, strict=True):
            if not isinstance(answer, RedisError):
                answers[shard] = answer
            elif isinstance(failure := _failure_of(shard, answer), ShardLost):
                answers[shard] = failure
            else:
                raise failure
        return answers

    def close(self) -> None:
        client, self._client, self._connection, self._failure = self._client, None, None, None
        self._unsent.clear()
        self._whole.clear()
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def _send(self, *words: str) -> None:
        self._unsent.append(words)
        self._waker.wake()

    def _read(self) -> list[Any]:
        """Send what is queued; return what has arrived. A failure after that is kept for the next call."""
        answers: list[Any] = []
        try:
            while self._unsent:
                self._opened_connection().send_command(*self._unsent.popleft())
            connection, size, counted = self._opened_connection(), 0, -1
            while counted < len(answers) < MAX_MESSAGES_PER_READ and size < MAX_BYTES_PER_READ:
                counted = len(answers)
                read_arrived(connection, answers, counted + MESSAGES_PER_COUNT)
                size += sum(len(each[-1]) for each in answers[counted:] if each[0] == b"message")
        except (RedisError, OSError) as error:
            self._failure = as_failure(error)
        return answers

    def _opened(self) -> Redis:
        if self._client is None:
            raise StoreUnavailable("not connected")
        return self._client

    def _opened_connection(self) -> Any:
        self._opened()
        return self._connection

    def _ask(self, shard: int, question: Callable[[Redis], T]) -> T:
        """Call the server over the connection for reads."""
        client = self._opened()
        try:
            return question(client)
        except (RedisError, OSError) as error:
            raise _failure_of(shard, error) from error

    def _message_of(self, answer: Any) -> ChannelMessage | None:
        match answer:
            case [b"message", channel, text]:
                shard = self._whole.get(channel)
                return read_hint(text) if shard is None else _read_changes(shard, text)
            case [b"subscribe", channel, _] if channel in self._whole:
                return ShardJoined(self._whole[channel])
            case [b"subscribe", channel, _] if uid := self._uid_of(channel):
                return Subscribed(uid)
            case [b"unsubscribe", channel, _] if uid := self._uid_of(channel):
                return Unsubscribed(uid)
            case [b"pong", number] | (bytes() as number):  # the second while nothing is subscribed to
                return Pong(int(number))
            case _:
                return None

    def _uid_of(self, channel: bytes) -> str:
        """Return the user of a channel; "" for those of a shard."""
        _, _, uid = channel[len(self._head) :].partition(self._tail)
        return uid.decode()


def _read_changes(shard: int, packed: bytes) -> ShardChanges | None:
    """Return a message of the channel of all changes; None if no script published it."""
    try:
        previous, last, flat = msgpack.unpackb(packed, raw=True)
        uids = [uid.decode(errors="backslashreplace") for uid in flat[::2]]
        changes = list(zip(uids, flat[1::2], strict=True))
        return ShardChanges(shard, id_of(previous.decode()), id_of(last.decode()), changes)
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        return None


def _failure_of(shard: int, error: RedisError | OSError) -> StoreUnavailable | StoreError:
    """Return a failed read of a shard as `ShardLost`, or as that of the whole server."""
    failure = as_failure(error)
    if isinstance(error, ResponseError) and is_of_slot(error):
        return ShardLost(f"shard {shard}: {failure}")
    return failure
