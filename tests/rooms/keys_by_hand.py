"""Keys of rooms as the projector leaves them, written by hand."""

from typing import Any

from presence.rooms.keys import RoomKeys
from presence.store.redis_client import Redis

AT_MS = 1_700_000_000_000


class HandMadeRooms:
    """Writes members and entries of rooms, in as many shards."""

    def __init__(self, client: Redis, shards: int = 4) -> None:
        self.client = client
        self.keys = RoomKeys(shards=shards)
        client.hset(self.keys.meta, mapping={"version": 2, "shards": shards})

    def fill(self, room: str, members: dict[str, str]) -> None:
        """Put users into a room, each with a letter of a status."""
        values = {uid: f"5-{number} {letter}" for number, (uid, letter) in enumerate(members.items())}
        invisible = sum(letter == "i" for letter in members.values())
        values |= {" o": f"{AT_MS}-0"} | ({" i": str(invisible)} if invisible else {})
        self.client.hset(self.keys.room(room), mapping=dict[Any, Any](values))
        self.client.zadd(self.keys.room_sizes(self.keys.shard(room)), {room: len(members)})

    def tell(self, kind: str, room: str, uid: str = "ann", count: int = 1, **more: str) -> str:
        """Write an entry; return its id."""
        fields: dict[Any, Any] = {"v": 1, "type": kind, "room": room, "uid": uid, "count": count}
        fields |= {"public": count, "at_ms": AT_MS, "reason": "login", "event_id": "5-0", "source": 0, **more}
        shard = self.keys.shard(room)
        entry_id: Any = self.client.xadd(self.keys.events(shard), fields)
        if kind == "occupied":
            self.client.zadd(self.keys.room_sizes(shard), {room: count})
        if kind == "vacated":
            self.client.zrem(self.keys.room_sizes(shard), room)
        return str(entry_id.decode())
