"""The stream of rooms, as programs read it: at least once in a group, or from a snapshot on.

The script `presence/store/scripts/rooms/project.lua` writes it; delivery is that of `presence.subscriber`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Unpack

from presence.rooms.keys import RoomKeys
from presence.store.keys import Keys
from presence.store.shard_clients import ShardClients
from presence.subscriber.arguments import ReadingOptions, source_of
from presence.subscriber.async_subscription import Subscription
from presence.subscriber.blocking import BlockingSubscription
from presence.subscriber.events import Gap, Item, utc
from presence.subscriber.redis_connections import RedisConnections
from presence.subscriber.snapshot import SnapshotSource, pages


@dataclass(frozen=True, slots=True)
class _RoomEvent:
    """The fields of all events of rooms.

    `room`, the class, `uid` and `event_id` together identify an event that Redis lost and that was written
    again, under another `id`.
    """

    shard: int  # of the room
    id: str  # the entry id. Of two events of a room, the one with the higher id is the newer
    room: str
    uid: str  # the user whose event led to it
    count: int  # members after it; a user is one, whatever the number of sessions
    public: int  # those of them who are not invisible
    at_ms: int  # of the user's event, Unix milliseconds by the clock of the server
    reason: str  # of that event; ``comparison``: a difference from the users' records was corrected
    event_id: str  # the entry id of that event, in the shard of the user
    deliveries: int = 1  # number of deliveries to this consumer group, including this one

    @property
    def at(self) -> datetime:
        """`at_ms` as a time in UTC."""
        return utc(self.at_ms)


class Occupied(_RoomEvent):
    """A room without members has got its first one."""

    __slots__ = ()


class Vacated(_RoomEvent):
    """The last member of a room has left it; Redis keeps nothing of the room."""

    __slots__ = ()


class Joined(_RoomEvent):
    """A user became a member, if the servers' setting `room_events` is ``all``."""

    __slots__ = ()


class Left(_RoomEvent):
    """A user is a member no more, if the servers' setting `room_events` is ``all``."""

    __slots__ = ()


RoomEvent = Occupied | Vacated | Joined | Left
_CLASSES: Final[Mapping[str, type[RoomEvent]]] = {
    "occupied": Occupied,
    "vacated": Vacated,
    "joined": Joined,
    "left": Left,
}


@dataclass(frozen=True, slots=True)
class RoomSnapshot:
    """Which rooms had members at one moment of each shard's stream of rooms.

    The numbers of members are those of this moment if the stream has who joined and left, and otherwise of
    some moment during the reading.
    """

    counts: Mapping[str, int]  # room to the number of its members
    positions: Mapping[int, str]  # by shard: the last entry id included


def decode_room(item: Item) -> RoomEvent | Gap | None:
    """Return the event, or None if the form of the entry is unknown."""
    if isinstance(item, Gap):
        return item
    fields = item.fields
    try:
        count, public, at_ms = (int(fields[name]) for name in ("count", "public", "at_ms"))
        room, uid, reason, event_id = (fields[name] for name in ("room", "uid", "reason", "event_id"))
        event = _CLASSES[fields["type"]]
    except (KeyError, ValueError):
        return None
    place = (item.shard, item.id)
    return event(*place, room, uid, count, public, at_ms, reason, event_id, item.deliveries)


class RoomFollower(SnapshotSource[dict[str, int]]):
    """A source that gives a `RoomSnapshot`, then the entries of the stream of rooms."""

    def _scan(self, clients: ShardClients, keys: Keys) -> dict[str, int]:
        return {
            room.decode("utf-8", "backslashreplace"): int(size)
            for shard in range(keys.shards)
            for page in pages(clients, keys.room_sizes(shard), "zscan")
            for room, size in page
        }

    def _apply(self, view: dict[str, int], items: list[Item]) -> None:
        for item in items:
            match decode_room(item):
                case Occupied() as event:
                    view.setdefault(event.room, event.count)  # the scan may have seen later members
                case Vacated() as event:
                    view.pop(event.room, None)
                case Joined() | Left() as event if event.count:
                    view[event.room] = event.count
                case _:
                    pass

    def _finished(self, view: dict[str, int], positions: dict[int, str]) -> RoomSnapshot:
        return RoomSnapshot(view, positions)


def subscribe_rooms(
    url: str, *, auto_ack: bool = True, **options: Unpack[ReadingOptions]
) -> Subscription[RoomEvent | Gap]:
    """Return an async iterator of the events of rooms, in order for each room.

    The other arguments, `group`, `consumer`, `after`, `prefix`, `max_deliveries`, `claim_idle` and
    `prefetch`, and methods, guarantees and errors, are those of `presence.subscriber.subscribe`; dead letters
    are in the stream ``presence:{shard}:rooms:dead``.
    """
    return Subscription(source_of(url, **options, kind=RoomKeys), decode_room, auto_ack=auto_ack)


def subscribe_rooms_sync(
    url: str, *, auto_ack: bool = True, **options: Unpack[ReadingOptions]
) -> BlockingSubscription[RoomEvent | Gap]:
    """Return a plain iterator of the same events; arguments and guarantees are those of `subscribe_rooms`."""
    return BlockingSubscription(source_of(url, **options, kind=RoomKeys), decode_room, auto_ack=auto_ack)


def follow_rooms(url: str, *, prefix: str = "presence") -> Subscription[RoomSnapshot | RoomEvent | Gap]:
    """Return an async iterator that gives a `RoomSnapshot` and then every event of rooms after it.

    After a `Gap` there is a new snapshot. It takes about 150 bytes of memory per room.

    Raises:
        ValueError: the URL is invalid.
    """
    return Subscription(RoomFollower(RedisConnections(url), prefix, RoomKeys), _or_snapshot)


def follow_rooms_sync(
    url: str, *, prefix: str = "presence"
) -> BlockingSubscription[RoomSnapshot | RoomEvent | Gap]:
    """Return a plain iterator of the same items as `follow_rooms`."""
    return BlockingSubscription(RoomFollower(RedisConnections(url), prefix, RoomKeys), _or_snapshot)


def _or_snapshot(item: Any) -> RoomSnapshot | RoomEvent | Gap | None:
    return item if isinstance(item, RoomSnapshot) else decode_room(item)
