"""A node's control channel: a subscription that is read by blocking, and then as much as there is."""

from collections.abc import Sequence
from typing import Final

import msgpack

from presence.messaging.letters import Delivery
from presence.store.client import open_listener
from presence.store.inquiring import read_question
from presence.store.keys import Keys
from presence.store.packing import read_erasure, read_message, read_news
from presence.store.replies import Erasure, News, Question
from presence.store.routes import Connect
from presence.store.subscription import Subscription

MESSAGES_A_CALL: Final = 64  # each has at most what one call of another node carries
_FIRST_OF_JSON: Final = b"{"


class ControlChannel:
    """Subscribes to the channel of one node; see `presence.control.Channel`.

    Args:
        url: as `presence.store.address` takes it; of a cluster any server will do, for all pass messages on.
        keys: how channels are called.
        connect: makes the client of one server.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_listener) -> None:
        self._keys = keys
        self._subscription = Subscription(url, connect)

    def subscribe(self, node: str) -> None:
        """Listen to the channel of `node` and to no other; returns when Redis has confirmed.

        Raises:
            StoreUnavailable: Redis cannot be reached.
            StoreError: it refused.
        """
        channel = self._keys.control_channel(node)
        self._subscription.open(lambda routes: routes.anyone(), "SUBSCRIBE", channel)
        self._subscription.read(1)

    def next(self) -> list[News | Delivery | Question | Erasure]:
        """Wait for a message, for ever if need be; return what it and those that are there already say.

        What is of no kind known here is left out.

        Raises:
            StoreUnavailable: the connection is lost, or there was none.
        """
        return [each for _, _, text in self._subscription.read(MESSAGES_A_CALL) for each in _read(text)]

    def close(self) -> None:
        """Close the connection; a call that waits in another thread fails."""
        self._subscription.close()


def _read(text: bytes) -> Sequence[News | Delivery | Question | Erasure]:
    """Return what one message says: news and questions are JSON, deliveries are not."""
    if text[:1] != _FIRST_OF_JSON:
        return read_deliveries(text)
    if (said := read_message(text)) is None:
        return []
    told = read_news(said) or read_question(said) or read_erasure(said)
    return [] if told is None else [told]


def read_deliveries(packed: bytes) -> list[Delivery]:
    """Return what deliver.lua packed for a node; nothing if it is anything else."""
    try:
        flat = msgpack.unpackb(packed, raw=True)
        return [
            Delivery(uid.decode(), tuple([device.decode() for device in devices]), frame)
            for uid, devices, frame in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            if type(frame) is bytes
        ]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []
