"""Rooms: who is in each of them, projected from the events of users into Redis.

`subscribe_rooms` gives `Occupied`, when a room gets its first member, and `Vacated`, when the last one has
left; `follow_rooms` begins with a snapshot of the rooms that have members. `presence.reader` reads the
members of a room. See `docs/rooms.md`.
"""

from presence.rooms.stream import (
    Joined,
    Left,
    Occupied,
    RoomEvent,
    RoomSnapshot,
    Vacated,
    follow_rooms,
    follow_rooms_sync,
    subscribe_rooms,
    subscribe_rooms_sync,
)
from presence.subscriber.events import Gap

__all__ = [
    "Gap",
    "Joined",
    "Left",
    "Occupied",
    "RoomEvent",
    "RoomSnapshot",
    "Vacated",
    "follow_rooms",
    "follow_rooms_sync",
    "subscribe_rooms",
    "subscribe_rooms_sync",
]
