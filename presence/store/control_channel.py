"""The control channel of a node: what other nodes, operators and backends send it.

The same connection has the channels of changed rosters and rooms, which all nodes hear.

A connection of its own and not redis-py's `PubSub`, which reconnects by itself when a read fails. A quiet
server is asked for a sign of life: in a cluster the others go on while one hangs, and nothing is heard there.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from presence.common.errors import StoreUnavailable
from presence.messaging.message_bus import ConfirmationReport, Delivery
from presence.outbox.replies import NodeNotice
from presence.store.answers import read_address, read_confirm, read_confirmation_report
from presence.store.cluster_routes import Connect, Routes
from presence.store.control_messages import (
    BanNotice,
    Erasure,
    RebalanceOrder,
    read_ban_notice,
    read_erasure,
    read_rebalance,
)
from presence.store.error_classes import calling
from presence.store.keys import Keys
from presence.store.questions import Question, read_question
from presence.store.redis_client import CALL_TIMEOUT_S, Redis, TimedOut, open_listener, read_arrived
from presence.store.roster_table import read_changed
from presence.store.script_arguments import read_message, read_notice


class ChangedRosters(NamedTuple):
    """A notice that the rosters of some users have changed."""

    uids: tuple[str, ...]


class ChangedRooms(NamedTuple):
    """A notice that some rooms have other members."""

    names: tuple[str, ...]


ControlMessage: TypeAlias = (
    NodeNotice
    | Delivery
    | ConfirmationReport
    | Question
    | Erasure
    | BanNotice
    | RebalanceOrder
    | ChangedRosters
    | ChangedRooms
)

PING_INTERVAL_S: Final = 1.0  # while nothing arrives
MAX_MESSAGES_PER_READ: Final = 64  # of a control channel: each holds at most one call of another node
_FIRST_OF_JSON: Final = b"{"


class ControlChannel:
    """The channel of one node; see `presence.server.control_listener.ControlSubscription`.

    After any failure it must be subscribed again.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet. In a cluster any server will do,
            because all forward messages.
        keys: channel names.
        rooms: whether to listen for changed rooms.
        connect: makes the client of one server.
    """

    def __init__(
        self, url: str, keys: Keys, *, rooms: bool = False, connect: Connect = open_listener
    ) -> None:
        self._routes = Routes(url, connect)
        self._keys = keys
        self._readers: dict[bytes, Callable[[bytes], Sequence[ControlMessage]]] = {
            keys.roster_channel.encode(): lambda text: [ChangedRosters(read_changed(text))]
        }
        if rooms:
            self._readers[keys.room_channel.encode()] = lambda text: [ChangedRooms(read_rooms(text))]
        self._client: Redis | None = None
        self._connection: Any = None  # redis-py's, whose types are loose

    def subscribe(self, node: str) -> None:
        """Subscribe; return when Redis has confirmed."""
        self.close()
        with calling(self._leave):
            self._client = self._routes.any_server()
            connection: Any = self._client.connection_pool.get_connection()
            channels = self._keys.control_channel(node), *self._readers
            connection.send_command("SUBSCRIBE", *channels)
            for _ in channels:
                connection.read_response()
            self._connection = connection

    def next(self) -> list[ControlMessage]:
        """Return what has arrived, without messages of unknown kinds. A server that hangs is unavailable."""
        return [
            each
            for _, channel, text in self._read()
            for each in self._readers.get(channel, _read_message)(text)
        ]

    def close(self) -> None:
        self._client = self._connection = None
        self._routes.close()

    def _leave(self) -> None:
        """Close the connection after a failure; in a cluster another server is tried next."""
        if self._client is not None:
            self._routes.invalidate(self._client)
        self.close()

    def _read(self) -> list[Any]:
        """Wait for a message; return it and those that have arrived with it.

        Messages before a failure are returned, and the next call fails.
        """
        if (connection := self._connection) is None:
            raise StoreUnavailable("not connected")
        found: list[Any] = []
        try:
            with calling(self._leave):
                while not any(map(_is_message, found)):
                    found = [_next_answer(connection)]
                    read_arrived(connection, found, MAX_MESSAGES_PER_READ)
        except StoreUnavailable:
            if not any(map(_is_message, found)):
                raise
        return [*filter(_is_message, found)]


def _next_answer(connection: Any) -> Any:
    """Wait for a message, or for the answer to a PING."""
    with suppress(TimedOut):
        return connection.read_response(timeout=PING_INTERVAL_S, disconnect_on_error=False)
    connection.send_command("PING")
    return connection.read_response(timeout=CALL_TIMEOUT_S)


def _is_message(answer: list[Any]) -> bool:
    return bool(answer[0] == b"message")


def _read_message(text: bytes) -> Sequence[ControlMessage]:
    """Return the content of one message: notices and questions are JSON, deliveries are not."""
    if text[:1] != _FIRST_OF_JSON:
        return read_deliveries(text)
    if (message := read_message(text)) is None:
        return []
    readers = (
        *(read_notice, read_question, read_erasure, read_ban_notice),
        *(read_confirmation_report, read_rebalance),
    )
    return next(([found] for read in readers if (found := read(message)) is not None), [])


def read_rooms(text: bytes) -> tuple[str, ...]:
    """Return the names in a message of `Keys.room_channel`; damaged ones are those of no room."""
    return tuple(text.decode("utf-8", "replace").split(" "))


def read_deliveries(packed: bytes) -> list[Delivery]:
    """Return the deliveries that deliver.lua packed for a node; [] for anything else."""
    try:
        flat = msgpack.unpackb(packed, raw=True)
        return [
            delivery
            for uid, devices, given in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            if (delivery := _delivery(uid.decode(), [device.decode() for device in devices], given))
            is not None
        ]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []


def _delivery(uid: str, devices: list[str], given: Any) -> Delivery | None:
    """Return a delivery; None if it has no frame, or an invalid address for reports."""
    if type(given) is bytes:
        return Delivery(uid, tuple(devices), given)
    if type(given) is list and given and type(given[0]) is bytes and (address := read_address(given[1:])):
        return Delivery(uid, tuple(devices), given[0], address, read_confirm(given[4:]))
    return None
