"""A subscription that a thread reads by blocking, until something comes or another thread wakes it.

It is a connection of its own and not redis-py's `PubSub`, which connects again by itself when a read fails.
Nobody but the thread that reads writes to the connection: others hand it what is to be sent, or close it, and
wake it. So that works over TLS, too.
"""

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from redis.exceptions import TimeoutError as RedisTimeoutError

from presence.store.batches import StoreUnavailable
from presence.store.client import Redis, open_client
from presence.store.failures import calling
from presence.store.routes import Connect, Routes

T = TypeVar("T")


class Subscription:
    """One connection at a time; after any failure, and after `close`, it has to be opened anew.

    `open` and `read` are for one thread at a time, `ask` for another; `send` and `close` may be called by
    any, and never wait. What blocks raises `StoreUnavailable` or `StoreError`.

    Args:
        url: as `presence.store.address` takes it; nothing is sent yet.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, connect: Connect = open_client) -> None:
        self._routes = Routes(url, connect)
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose
        self._closings = 0
        self._lock = threading.Lock()
        self._unsent: deque[tuple[str | bytes, ...]] = deque()
        self._waked, self._waker = os.pipe()
        for end in (self._waked, self._waker):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)  # not sooner: a thread may wait there

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def open(self, server: Callable[[Routes], Redis], *first: str | bytes) -> None:
        """Connect to a server; the first command is sent by the next `read`."""
        self.close()
        closings = self._closings
        with calling(self.close):
            client = server(self._routes)
            connection: Any = client.connection_pool.get_connection()
            with self._lock:
                if self._closings == closings:
                    self._client, self._connection = client, connection
                    self._unsent.clear()
                    self._unsent.append(first)
                    return
            connection.disconnect()
            raise StoreUnavailable("closed while it was opened")

    def send(self, *words: str | bytes) -> None:
        """Have a command sent."""
        self._unsent.append(words)
        self._wake()

    def read(self, limit: float, timeout_s: float | None = None) -> list[Any]:
        """Wait for an answer; return it and those that are there already, `limit` at most.

        What came before a failure is returned; the next call fails then.

        Args:
            limit: how many answers.
            timeout_s: after which there is none; None: it waits however long.
        """
        connection = self._connected(self._connection)
        answers: list[Any] = []
        try:
            with calling(self.close):
                self._read(connection, answers, limit, timeout_s)
        except StoreUnavailable:
            if not answers:
                raise
        return answers

    def ask(self, question: Callable[[Redis], T]) -> T:
        """Ask the same server something, over another connection."""
        client = self._connected(self._client)
        with calling(self.close):
            return question(client)

    def close(self) -> None:
        """Close the connections; calls that wait fail."""
        with self._lock:
            self._client = self._connection = None
            self._closings += 1
        self._routes.close()
        self._wake()

    def _read(self, connection: Any, answers: list[Any], limit: float, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(connection._sock, select.POLLIN)
        poll.register(self._waked, select.POLLIN)
        while True:
            while self._unsent:
                connection.send_command(*self._unsent.popleft())
            with suppress(RedisTimeoutError):  # nothing more is there
                while len(answers) < limit:
                    answers.append(connection.read_response(timeout=0, disconnect_on_error=False))
            if answers:
                return
            if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                return
            with suppress(BlockingIOError):
                while os.read(self._waked, 4096):
                    pass
            if self._connection is not connection:
                raise StoreUnavailable("closed")

    @staticmethod
    def _connected(found: T | None) -> T:
        if found is None:
            raise StoreUnavailable("not connected")
        return found

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it will wake up
            os.write(self._waker, b"\0")
