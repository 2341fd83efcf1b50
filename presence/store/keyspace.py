"""One server's word on which volatile keys expire: keyspace notifications, off unless it was set up.

What it has to be set to is ``notify-keyspace-events`` with ``K`` (a channel for each key: with that for each
kind of event, ``E``, everybody would have to hear of the expired keys of everybody else) and ``x`` or ``A``.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from presence.store.batches import StoreError
from presence.store.client import open_client
from presence.store.failures import passes

SETTING: Final = "notify-keyspace-events"
PING_AFTER_S: Final = 5.0  # of silence; a connection that does not answer in as long again is given up
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
PROBE_S: Final = 0.5  # a server that tells does so within milliseconds
_FAILURES: Final = (RedisError, OSError, ValueError, StoreError)


class ExpiriesOff(StoreError):
    """Redis does not tell expiries, and this user may not change that; the message says what is needed."""


def with_flags(present: str) -> str:
    """Return a value of the setting that tells expiries by key, and all that the present one tells."""
    kind = "" if "K" in present else "K"
    expired = "" if set(present) & {"x", "A"} else "x"
    return present + kind + expired


class KeyspaceListener(threading.Thread):
    """Listens to one server, and comes back when the connection is lost.

    Args:
        url: of the server.
        prefix: of the keys.
        probe: a key that this server has, to find out whether it tells; None: none was found.
        on_heard: called with each name.
        on_missed: called when names may have gone by.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        probe: str | None,
        on_heard: Callable[[bytes], None],
        on_missed: Callable[[], None],
    ) -> None:
        super().__init__(name="expiries", daemon=True)  # it keeps nothing that an exit could harm
        self._client = open_client(url)
        self._pool: Any = self._client.connection_pool  # redis-py's, whose types are loose
        database = self._pool.connection_kwargs.get("db") or 0
        self._channel = f"__keyspace@{database}__:".encode()
        self._prefix = self._channel + prefix.encode()
        self._probe = None if probe is None else f"{probe}:{secrets.token_hex(8)}"
        self._on_heard = on_heard
        self._on_missed = on_missed
        self._connection: Any = None
        self._closed = threading.Event()

    @property
    def is_listening(self) -> bool:
        """Whether the subscription stands."""
        return self._connection is not None

    def run(self) -> None:
        """Listen until it is closed."""
        failures = 0
        while not self._closed.is_set():
            try:
                if self._connection is None:
                    self.listen()
                failures = 0
                self._hear()
            except Exception as error:
                self._disconnect()
                # Closing pulls the connection away from under the read: whatever that raises means nothing.
                if not (self._closed.is_set() or isinstance(error, _FAILURES)):
                    raise
                self._closed.wait(min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(failures, 8)))
                failures += 1
        self._disconnect()

    def listen(self) -> None:
        """Subscribe; what expired before is missed.

        Raises:
            ExpiriesOff: the server does not tell.
            RedisError, OSError: it cannot be reached, or refuses.
        """
        is_told = self._set_up()
        connection = self._pool.get_connection()
        try:
            connection.send_command("PSUBSCRIBE", _glob(self._prefix) + b"*")
            connection.read_response()
            if not is_told and self._probe is not None and not self._has_heard(connection, self._probe):
                raise self._off("it does not, and CONFIG GET is refused")
        except ResponseError as error:
            raise self._off(f"a call is refused ({error})") from error
        if self._closed.is_set():
            connection.disconnect()
            return
        self._connection = connection
        self._on_missed()

    def close(self) -> None:
        """End the thread, if it was started, and the connections."""
        self._closed.set()
        self._disconnect()
        self._client.close()
        if self.is_alive():
            self.join()

    def _hear(self) -> None:
        connection, is_asked = self._connection, False
        while not self._closed.is_set():
            try:
                answer = connection.read_response(timeout=PING_AFTER_S, disconnect_on_error=False)
            except RedisTimeoutError:
                if is_asked:
                    raise
                connection.send_command("PING")
                is_asked = True
                continue
            except ResponseError:  # it may not be asked: that is an answer, too
                is_asked = False
                continue
            is_asked = False
            self._take(answer)

    def _take(self, answer: Any) -> None:
        if answer[0] == b"pmessage" and answer[3] == b"expired" and answer[2].startswith(self._prefix):
            self._on_heard(answer[2][len(self._prefix) :])

    def _set_up(self) -> bool:
        """Let the server tell; return False where it does not say whether it does."""
        try:
            found: Any = self._client.config_get(SETTING)
        except RedisError as error:
            if passes(error):
                raise
            return False  # a hosted one, or a user without permission: it may tell all the same
        present = found.get(SETTING)
        if present is None:
            return False
        if (wanted := with_flags(present)) != present:
            try:
                self._client.config_set(SETTING, wanted)
            except RedisError as error:
                if passes(error):
                    raise
                raise self._off(f"{SETTING} is {present!r}, and CONFIG SET is refused ({error})") from error
        return True

    def _has_heard(self, connection: Any, probe: str) -> bool:
        """Let a key of our own expire, and return whether that is told."""
        channel = self._channel + probe.encode()
        connection.send_command("SUBSCRIBE", channel)
        connection.read_response()
        self._client.set(probe, "", px=1)
        time.sleep(0.003)
        self._client.get(probe)  # who looks at a key that has expired removes it
        deadline = time.monotonic() + PROBE_S
        with suppress(RedisTimeoutError):
            while (left_s := deadline - time.monotonic()) > 0:
                answer = connection.read_response(timeout=left_s, disconnect_on_error=False)
                if answer[0] == b"message" and answer[2] == b"expired":
                    connection.send_command("UNSUBSCRIBE", channel)
                    return True
                self._take(answer)
        return False

    def _off(self, why: str) -> ExpiriesOff:
        return ExpiriesOff(
            f"Redis has to tell which keys expire: {why}. On every server, add K and x to {SETTING} "
            "(redis.conf, or the parameters of a hosted Redis), or let this user call CONFIG GET and "
            f"CONFIG SET; and let him subscribe to the pattern {_glob(self._prefix).decode()}*"
        )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        self._pool.disconnect(inuse_connections=True)


def _glob(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([each]) if each in b"*?[]\\^" else bytes([each]) for each in prefix)
