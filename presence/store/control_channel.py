"""A node's control channel: a subscription that is read by blocking.

It is a connection of its own and not redis-py's `PubSub`, which connects again by itself when a read fails.
"""

import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from presence.store.batches import News, StoreUnavailable
from presence.store.client import Redis, open_client
from presence.store.failures import as_failure
from presence.store.keys import Keys
from presence.store.packing import read_news
from presence.store.scripting import Connect

T = TypeVar("T")

# Nothing is sent on a quiet channel, so only the kernel can find out that the other side is gone: in 30 s.
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3


class ControlChannel:
    """Subscribes to the channel of one node.

    Used from one thread at a time; only `close` may come from another. After any failure, and after `close`,
    it has to be subscribed anew.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        keys: how channels are called.
        connect: makes the client.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect | None = None) -> None:
        self._url = url
        self._keys = keys
        self._connect = connect or _open_listener
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose

    def subscribe(self, node: str) -> None:
        """Listen to the channel of `node` and to no other; returns when Redis has confirmed.

        Raises:
            StoreUnavailable: Redis cannot be reached.
            StoreError: it refused.
        """
        self.close()
        client = self._client = self._connect(self._url)

        def subscribe() -> None:
            connection: Any = client.connection_pool.get_connection()
            if self._client is not client:
                connection.disconnect()
                raise StoreUnavailable("closed while it was opened")
            self._connection = connection
            connection.send_command("SUBSCRIBE", self._keys.control_channel(node))
            connection.read_response()

        self._or_close(subscribe)

    def next(self) -> News | None:
        """Wait for a message, for ever if need be, and return its news; None: it was of no kind known here.

        Raises:
            StoreUnavailable: the connection is lost, or there was none.
        """
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("not subscribed")
        _, _, text = self._or_close(lambda: connection.read_response(timeout=None))
        return read_news(text)

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        client, self._client, self._connection = self._client, None, None
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def _or_close(self, blocking: Callable[[], T]) -> T:
        try:
            return blocking()
        except (RedisError, OSError, ValueError) as error:  # ValueError: closed under the call's feet
            self.close()
            raise as_failure(error) from error
        except BaseException:
            self.close()
            raise


def _open_listener(url: str) -> Redis:
    """Return a client whose connections the kernel watches, if they go over TCP."""
    if url.startswith("unix:"):
        return open_client(url)  # whose other side cannot vanish without a word
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)  # macOS
    wanted = {
        idle: KEEPALIVE_IDLE_S,
        getattr(socket, "TCP_KEEPINTVL", None): KEEPALIVE_INTERVAL_S,
        getattr(socket, "TCP_KEEPCNT", None): KEEPALIVE_PROBES,
    }
    options = {name: value for name, value in wanted.items() if name is not None}
    return open_client(url, socket_keepalive=True, socket_keepalive_options=options)
