"""A node's control channel: a subscription that is read by blocking, and then as much as there is.

It is a connection of its own and not redis-py's `PubSub`, which connects again by itself when a read fails.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from presence.messaging.letters import Delivery
from presence.store.batches import StoreUnavailable
from presence.store.client import Redis, open_client
from presence.store.deliveries import read_deliveries
from presence.store.failures import CALL_ERRORS, as_failure
from presence.store.inquiring import read_question
from presence.store.keys import Keys
from presence.store.packing import read_erasure, read_message, read_news
from presence.store.replies import Erasure, News, Question
from presence.store.routes import Connect, Routes

T = TypeVar("T")

MESSAGES_A_CALL: Final = 64  # each has at most what one call of another node carries
_FIRST_OF_JSON: Final = b"{"

# Nothing is sent on a quiet channel, so only the kernel can find out that the other side is gone: in 30 s.
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3


class ControlChannel:
    """Subscribes to the channel of one node.

    Used from one thread at a time; only `close` may come from another. After any failure, and after `close`,
    it has to be subscribed anew.

    Args:
        url: as `presence.store.address` takes it; of a cluster any server will do, for all pass messages on.
        keys: how channels are called.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect | None = None) -> None:
        self._keys = keys
        self._routes = Routes(url, connect or _open_listener)
        self._connection: Any = None  # redis-py's, whose types are loose
        self._closings = 0

    def subscribe(self, node: str) -> None:
        """Listen to the channel of `node` and to no other; returns when Redis has confirmed.

        Raises:
            StoreUnavailable: Redis cannot be reached.
            StoreError: it refused.
        """
        self.close()
        closings = self._closings

        def subscribe() -> None:
            connection: Any = self._routes.anyone().connection_pool.get_connection()
            if self._closings != closings:
                connection.disconnect()
                raise StoreUnavailable("closed while it was opened")
            self._connection = connection
            connection.send_command("SUBSCRIBE", self._keys.control_channel(node))
            connection.read_response()

        self._or_close(subscribe)

    def next(self) -> list[News | Delivery | Question | Erasure]:
        """Wait for a message, for ever if need be; return what it and those that are there already say.

        What is of no kind known here is left out.

        Raises:
            StoreUnavailable: the connection is lost, or there was none.
        """
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("not subscribed")
        texts: list[bytes] = []

        def read() -> None:
            while len(texts) < MESSAGES_A_CALL and (not texts or connection.can_read(timeout=0)):
                texts.append(connection.read_response(timeout=None)[2])

        try:
            self._or_close(read)
        except StoreUnavailable:
            if not texts:
                raise
            # What has arrived is told first; the next call finds no connection.
        return [each for text in texts for each in _read(text)]

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        self._connection = None
        self._closings += 1
        self._routes.close()

    def _or_close(self, blocking: Callable[[], T]) -> T:
        try:
            return blocking()
        except CALL_ERRORS as error:
            self.close()
            raise as_failure(error) from error
        except BaseException:
            self.close()
            raise


def _read(text: bytes) -> Sequence[News | Delivery | Question | Erasure]:
    """Return what one message says: news and questions are JSON, deliveries are not."""
    if text[:1] != _FIRST_OF_JSON:
        return read_deliveries(text)
    if (said := read_message(text)) is None:
        return []
    told = read_news(said) or read_question(said) or read_erasure(said)
    return [] if told is None else [told]


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
