"""Subscriptions read by a blocking thread, until a message arrives or another thread wakes it.

Each is a connection of its own and not redis-py's `PubSub`, which reconnects by itself when a read fails.
Only the reading thread writes to the connection: other threads close it, and wake the reader. This works
over TLS, too.
"""

import os
import select
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import msgpack
from redis.exceptions import TimeoutError as RedisTimeoutError

from presence.common.errors import StoreUnavailable
from presence.messaging.letters import Delivery, ReplyAddress
from presence.outbox.replies import BanNotice, Erasure, NodeNotice, Question
from presence.store.ask_nodes import read_question
from presence.store.client import Redis, open_client, open_listener
from presence.store.cluster_routes import Connect, Routes
from presence.store.error_classes import calling
from presence.store.keys import Keys
from presence.store.reports import read_address
from presence.store.script_arguments import read_ban_notice, read_erasure, read_message, read_notice

T = TypeVar("T")
ControlMessage: TypeAlias = NodeNotice | Delivery | Question | Erasure | BanNotice

MAX_MESSAGES_PER_READ: Final = 64  # of a control channel: each holds at most one call of another node
_FIRST_OF_JSON: Final = b"{"


class RedisSubscription:
    """One connection at a time; after any failure, and after `close`, it must be opened again.

    `begin` and `read` are called by one thread at a time; `close` may be called by any, and never
    blocks. Blocking methods raise `StoreUnavailable` or `StoreError`.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, connect: Connect = open_client) -> None:
        self._routes = Routes(url, connect)
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose
        self._closings = 0
        self._lock = threading.Lock()
        self._unsent: tuple[str | bytes, ...] | None = None  # the first command
        self._waked, self._waker = os.pipe()
        for end in (self._waked, self._waker):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)  # not earlier: a thread may be polling it

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def begin(self, server: Callable[[Routes], Redis], *first: str | bytes) -> None:
        """Connect to a server; the first command is sent by the next `read`."""
        self.close()
        closings = self._closings
        with calling(self.close):
            client = server(self._routes)
            connection: Any = client.connection_pool.get_connection()
            with self._lock:
                if self._closings == closings:
                    self._client, self._connection = client, connection
                    self._unsent = first
                    return
            connection.disconnect()
            raise StoreUnavailable("closed while it was opened")

    def read(self, limit: float, timeout_s: float | None = None) -> list[Any]:
        """Wait for an answer; return it and others that have arrived, at most `limit`.

        Answers before a failure are returned, and the next call fails. Empty after `timeout_s`.
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

    def close(self) -> None:
        """Close the connections; blocked calls fail."""
        with self._lock:
            self._client = self._connection = None
            self._closings += 1
        self._routes.close()
        self._wake()

    def shut_down(self) -> None:
        """Close the connections for good."""
        self._routes.shut_down()
        self.close()

    def _read(self, connection: Any, answers: list[Any], limit: float, timeout_s: float | None) -> None:
        poll = select.poll()
        poll.register(connection._sock, select.POLLIN)
        poll.register(self._waked, select.POLLIN)
        if (first := self._unsent) is not None:
            self._unsent = None
            connection.send_command(*first)
        while True:
            with suppress(RedisTimeoutError):  # nothing more has arrived
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
        with suppress(BlockingIOError):  # full: the reader will wake up
            os.write(self._waker, b"\0")


class ControlChannel(RedisSubscription):
    """The channel of one node; see `presence.server.control.ControlSubscription`.

    Args:
        url, connect: see `RedisSubscription`; in a cluster any server will do, because all forward messages.
        keys: channel names.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_listener) -> None:
        super().__init__(url, connect)
        self._keys = keys

    def subscribe(self, node: str) -> None:
        """Subscribe; return when Redis has confirmed."""
        self.begin(Routes.any_server, "SUBSCRIBE", self._keys.control_channel(node))
        self.read(1)

    def next(self) -> list[ControlMessage]:
        """Return what has arrived, without messages of unknown kinds."""
        return [each for _, _, text in self.read(MAX_MESSAGES_PER_READ) for each in _read_message(text)]


def _read_message(text: bytes) -> Sequence[ControlMessage]:
    """Return the content of one message: notices and questions are JSON, deliveries are not."""
    if text[:1] != _FIRST_OF_JSON:
        return read_deliveries(text)
    if (message := read_message(text)) is None:
        return []
    readers = (read_notice, read_question, read_erasure, read_ban_notice)
    return next(([found] for read in readers if (found := read(message)) is not None), [])


def read_deliveries(packed: bytes) -> list[Delivery]:
    """Return the deliveries that deliver.lua packed for a node; [] for anything else."""
    try:
        flat = msgpack.unpackb(packed, raw=True)
        return [
            Delivery(uid.decode(), tuple([device.decode() for device in devices]), *content)
            for uid, devices, given in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            if (content := _content(given)) is not None
        ]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []


def _content(given: Any) -> tuple[bytes, ReplyAddress | None] | None:
    """Return the frame of a delivery and its address for reports; None if it has no frame."""
    if type(given) is bytes:
        return given, None
    if type(given) is list and given and type(given[0]) is bytes and (address := read_address(given[1:])):
        return given[0], address
    return None
