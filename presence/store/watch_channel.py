"""The channels of the watched users of one shard: a subscription that is read by blocking.

A thread waits for the connection or for somebody who wakes it: with orders, or to close. As nobody but that
thread writes to the connection, that works over TLS too. Looks go over another connection to the same server:
what is heard and what is seen then have one order, that of the entry ids.
"""

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from presence.store.batches import StoreUnavailable
from presence.store.client import Redis, open_client
from presence.store.failures import CALL_ERRORS, as_failure
from presence.store.keys import Keys
from presence.store.routes import Connect, Routes
from presence.store.snapshots import read_last_id, read_replay, read_snapshot
from presence.watching.channel import Confirmed, Heard, Left, Pong, Replay
from presence.watching.states import EntryId, Snapshot, id_of, id_text, read_hint

T = TypeVar("T")


class WatchChannel:
    """See `presence.watching.channel.Channel`.

    Args:
        url: as `presence.store.address` takes it; nothing is sent yet.
        keys: how channels are called.
        shard: of the users.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, shard: int, connect: Connect = open_client) -> None:
        self._keys = keys
        self._shard = shard
        self._routes = Routes(url, connect)
        self._everybody = keys.watchers_channel(shard).encode()  # what the channels of its users begin with
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose
        self._closings = 0
        self._lock = threading.Lock()
        self._orders: deque[tuple[str | bytes, ...]] = deque()
        self._waked, self._waker = os.pipe()
        for end in (self._waked, self._waker):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)  # not sooner: a thread may wait there

    def open(self) -> None:
        """See `Channel`."""
        self.close()
        closings = self._closings

        def connect() -> None:
            client = self._routes.client(self._keys.events(self._shard))
            connection: Any = client.connection_pool.get_connection()
            with self._lock:
                if self._closings == closings:
                    self._client, self._connection = client, connection
                    self._orders.clear()
                    self._orders.append(("SUBSCRIBE", self._everybody))  # or nobody's channel is looked at
                    return
            connection.disconnect()
            raise StoreUnavailable("closed while it was opened")

        self._or_close(connect)

    def hear(self) -> list[Heard]:
        """See `Channel`."""
        return self._or_close(self._hear)

    def order(self, ask: Sequence[str], leave: Sequence[str]) -> None:
        """See `Channel`."""
        if leave:
            self._orders.append(("UNSUBSCRIBE", *map(self._keys.user_channel, leave)))
        if ask:
            self._orders.append(("SUBSCRIBE", *map(self._keys.user_channel, ask)))
        self._wake()

    def ping(self, position: EntryId) -> None:
        """See `Channel`."""
        self._orders.append(("PING", id_text(position)))
        self._wake()

    def snapshot(self, uids: Sequence[str]) -> Snapshot:
        """See `Channel`."""
        return self._ask(lambda client: read_snapshot(client, self._keys, self._shard, uids))

    def replay(self, after: EntryId, uids: Collection[str]) -> Replay:
        """See `Channel`."""
        return self._ask(lambda client: read_replay(client, self._keys, self._shard, after, uids))

    def check(self) -> EntryId:
        """See `Channel`."""
        last_id = self._ask(lambda client: read_last_id(client, self._keys, self._shard))
        if last_id is None:
            self.close()
            raise StoreUnavailable("the server is no primary any more")
        return last_id

    def close(self) -> None:
        """See `Channel`."""
        with self._lock:
            self._client = self._connection = None
            self._closings += 1
        self._routes.close()
        self._wake()

    def _hear(self) -> list[Heard]:
        connection = self._connected(self._connection)
        poll = select.poll()
        poll.register(connection._sock, select.POLLIN)
        poll.register(self._waked, select.POLLIN)
        while True:
            while self._orders:
                connection.send_command(*self._orders.popleft())
            heard = [found for each in self._available(connection) if (found := self._read(each))]
            if heard:
                return heard
            poll.poll()
            with suppress(BlockingIOError):
                while os.read(self._waked, 4096):
                    pass
            if self._connection is not connection:
                raise StoreUnavailable("closed")

    @staticmethod
    def _available(connection: Any) -> list[Any]:
        """Return all answers that are there, without waiting for more."""
        answers: list[Any] = []
        with suppress(RedisTimeoutError):
            while True:
                answers.append(connection.read_response(timeout=0, disconnect_on_error=False))
        return answers

    def _read(self, answer: Any) -> Heard | None:
        match answer:
            case [b"message", _, text]:
                return read_hint(text)
            case [b"subscribe", channel, _] if channel != self._everybody:
                return Confirmed(channel[len(self._everybody) :].decode())
            case [b"unsubscribe", channel, _]:
                return Left(channel[len(self._everybody) :].decode())
            case [b"pong", position]:
                return Pong(id_of(position.decode()))
            case _:
                return None

    def _ask(self, question: Callable[[Redis], T]) -> T:
        client = self._connected(self._client)
        return self._or_close(lambda: question(client))

    @staticmethod
    def _connected(found: T | None) -> T:
        if found is None:
            raise StoreUnavailable("not connected")
        return found

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it will wake up
            os.write(self._waker, b"\0")

    def _or_close(self, blocking: Callable[[], T]) -> T:
        try:
            return blocking()
        except CALL_ERRORS as error:
            self.close()
            raise as_failure(error) from error
        except BaseException:
            self.close()
            raise
