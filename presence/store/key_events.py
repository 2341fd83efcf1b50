"""Expirations of volatile keys, from the keyspace notifications of one Redis or of all servers of a cluster.

A server publishes expirations of its own keys only, only if configured, and only to current subscribers. So
there is a listener for each server that has keys, and `pop_missed` says when some may have been missed.

The setting needed is ``notify-keyspace-events`` with ``K`` (a channel for each key: with one for each kind of
event, ``E``, every subscriber would receive the expirations of all other keys) and ``x`` or ``A``.

Tests: `tests/timers/test_expiry_timer.py`.
"""

import math
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from presence.common import threads
from presence.common.backoff import backoff_s
from presence.common.errors import StoreError, StoreUnavailable
from presence.store.cluster_routes import Routes
from presence.store.error_classes import as_failure, calling, passes
from presence.store.redis_client import RedisError, open_client, open_listener, read_arrived

SETTING: Final = "notify-keyspace-events"
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0


class ExpiryNotificationsOff(StoreError):
    """Redis publishes no expirations, and this user may not change that; the message says what is needed."""


def with_flags(present: str) -> str:
    """Return a value of the setting with expirations by key added to the present value."""
    kind = "" if "K" in present else "K"
    expired = "" if set(present) & {"x", "A"} else "x"
    return present + kind + expired


class KeyExpirations:
    """Receives the expirations of keys that begin with a prefix.

    Methods may be called from one thread at a time.

    Args:
        url: as `presence.common.redis_url` takes it.
        prefix: of the keys.
        max_names: names that may wait for `pop`; more are dropped, which counts as missed.
    """

    def __init__(self, url: str, prefix: str, max_names: int) -> None:
        self._prefix = prefix
        self._routes = Routes(url)
        self._listeners: dict[str, _Listener] = {}
        self._names: deque[bytes] = deque()
        self._max_names = max_names
        self._changed = threading.Event()  # something was received or missed
        self._missed = threading.Event()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._names)

    @property
    def servers(self) -> int:
        """The number of servers listened to at present."""
        return sum(listener.is_open for listener in self._listeners.values())

    def refresh(self) -> None:
        """Listen to each server that there is now; call it first, and again from time to time.

        Raises:
            ExpiryNotificationsOff: a new server does not publish expirations.
            StoreUnavailable, StoreError: a new server, or every server of a cluster, is unreachable or
                refuses. Existing listeners stay.
        """
        try:
            servers = set(self._routes.primary_servers())
            for url in self._listeners.keys() - servers:
                self._listeners.pop(url).end()
            for url in servers - self._listeners.keys():
                self._listeners[url] = self._start_listener(url)
        except (RedisError, OSError) as error:
            raise as_failure(error) from error
        finally:
            self._routes.invalidate()  # a cluster's map is read anew the next time

    def pop(self, limit: int) -> list[str]:
        """Return received names without the prefix, oldest first, each once; never block."""
        names: dict[str, None] = {}
        while self._names and len(names) < limit:
            names[self._names.popleft().decode("utf-8", "replace")] = None
        return [*names]

    def pop_missed(self) -> bool:
        """Return whether expirations may have been missed since the last call."""
        was_missed = self._missed.is_set()
        self._missed.clear()
        return was_missed

    def wait(self, seconds: float) -> bool:
        """Wait until something was received or missed; return whether it was."""
        if not self._names and not self._missed.is_set():
            self._changed.clear()
            if not self._names and not self._missed.is_set():
                self._changed.wait(seconds)
        return bool(self._names) or self._missed.is_set()

    def close(self) -> None:
        """Stop listening, and end the threads."""
        for listener in self._listeners.values():
            listener.end()
        self._listeners.clear()
        self._routes.close()

    def _start_listener(self, url: str) -> "_Listener":
        listener = _Listener(url, self._prefix, self._on_name, self._on_missed)
        try:
            listener.listen()
            listener.start()
        except BaseException:
            listener.end()
            raise
        return listener

    def _on_name(self, name: bytes) -> None:
        if len(self._names) < self._max_names:
            self._names.append(name)
            self._changed.set()
        else:
            self.dropped += 1
            self._on_missed()

    def _on_missed(self) -> None:
        self._missed.set()
        self._changed.set()


class _Listener:
    """Listens to one server in a thread, and reconnects after a loss.

    Its thread writes to the connection and reads from it, over TLS too. `end` may be called in any other; it
    closes the connection, and wakes the thread.

    Args:
        url: of the server.
        prefix: of the keys.
        on_name: called with each name.
        on_missed: called when names may have been missed.
    """

    def __init__(
        self, url: str, prefix: str, on_name: Callable[[bytes], None], on_missed: Callable[[], None]
    ) -> None:
        self._client = open_listener(url)
        self._connection: Any = None  # redis-py's, whose types are loose
        self._waked, self._waker = os.pipe()
        for end in (self._waked, self._waker):
            os.set_blocking(end, False)
            weakref.finalize(self, os.close, end)  # not earlier: the thread may be polling it
        # A daemon: killing it at exit does no harm.
        self._thread = threading.Thread(target=self._run, name="expiries", daemon=True)
        self._config = open_client(url)
        database = self._config.connection_pool.connection_kwargs.get("db") or 0
        self._prefix = f"__keyspace@{database}__:{prefix}".encode()
        self._on_name = on_name
        self._on_missed = on_missed
        self._ended = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def start(self) -> None:
        """Continue to listen in a thread; raises `NoThread` if none can be started."""
        threads.start(self._thread)

    def _run(self) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                if not self.is_open:
                    self.listen()
                failures = 0
                for answer in self._read():
                    self._handle(answer)
            except (StoreUnavailable, StoreError, RedisError, OSError, ValueError):
                self._close()
                self._ended.wait(backoff_s(failures, RETRY_FIRST_S, RETRY_MAX_S))
                failures += 1
        self._close()

    def listen(self) -> None:
        """Subscribe; earlier expirations are missed.

        Raises:
            ExpiryNotificationsOff: the server does not publish expirations.
            StoreUnavailable, RedisError, OSError: it is unreachable, or refuses.
        """
        self._enable()
        with calling(self._close):
            connection: Any = self._client.connection_pool.get_connection()
            self._connection = connection
            if self._ended.is_set():  # `end` has closed what there was before
                raise StoreUnavailable("ended while it was opened")
        try:
            with calling(self._close):
                connection.send_command("PSUBSCRIBE", _glob(self._prefix) + b"*")
                connection.read_response()
        except StoreError as error:
            raise self._disabled(f"a call is refused ({error})") from error
        self._on_missed()

    def end(self) -> None:
        """End the thread, if it was started, and the connections."""
        self._ended.set()
        self._close()
        with suppress(BlockingIOError):  # full: the thread will wake up
            os.write(self._waker, b"\0")
        self._config.close()
        if self._thread.is_alive():
            self._thread.join()

    def _close(self) -> None:
        self._connection = None
        self._client.connection_pool.disconnect(inuse_connections=True)

    def _read(self) -> list[Any]:
        """Wait for an answer; return it and others that have arrived.

        Answers before a failure are returned, and the next call fails.
        """
        if (connection := self._connection) is None:
            raise StoreUnavailable("not connected")
        poll = select.poll()
        answers: list[Any] = []
        try:
            with calling(self._close):
                poll.register(connection._sock, select.POLLIN)
                poll.register(self._waked, select.POLLIN)
                while not answers and not self._ended.is_set():
                    read_arrived(connection, answers, math.inf)
                    if not answers:
                        poll.poll()
        except StoreUnavailable:
            if not answers:
                raise
        return answers

    def _handle(self, answer: Any) -> None:
        if answer[0] == b"pmessage" and answer[3] == b"expired" and answer[2].startswith(self._prefix):
            self._on_name(answer[2][len(self._prefix) :])

    def _enable(self) -> None:
        """Enable notifications; a server that hides the setting, as hosted ones do, is assumed to have
        them."""
        try:
            found: Any = self._config.config_get(SETTING)
            present = found.get(SETTING)
        except RedisError as error:
            if passes(error):
                raise
            return
        if present is None or (wanted := with_flags(present)) == present:
            return
        try:
            self._config.config_set(SETTING, wanted)
        except RedisError as error:
            if passes(error):
                raise
            raise self._disabled(f"{SETTING} is {present!r}, and CONFIG SET is refused ({error})") from error

    def _disabled(self, why: str) -> ExpiryNotificationsOff:
        return ExpiryNotificationsOff(
            f"Redis has to tell which keys expire: {why}. On every server, add K and x to {SETTING} "
            "(redis.conf, or the parameters of a hosted Redis), or let this user call CONFIG GET and "
            f"CONFIG SET; and let it subscribe to the pattern {_glob(self._prefix).decode()}*"
        )


def _glob(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([each]) if each in b"*?[]\\^" else bytes([each]) for each in prefix)
