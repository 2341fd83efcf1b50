"""Key names and shards of presence data in Redis: defined only here."""

import zlib
from dataclasses import dataclass
from typing import ClassVar, Final

NODE_PARTS: Final = ("sessions", "pending")  # of a node in a shard, besides its hash

# The types of values by the last part of their keys' names.
_TYPES: Final = {
    "hash": (
        "online left meta traces leases stats bans rosters work of state counts ring users wheel sources",
        "sessions pending",
    ),
    "stream": ("events followups",),
    "zset": ("seen nodes tombs due leased dead sizes",),
    "set": ("holding",),
}
_TYPE_BY_PART: Final = {part: type for type, texts in _TYPES.items() for part in " ".join(texts).split()}


def value_type(key: str) -> str:
    """Return the type of the value of a key; "" if it is unknown."""
    rest, _, last = key.rpartition(":")
    if rest.endswith(":node") or "}:room:" in key:
        return "hash"
    if rest.endswith("}:slot"):
        return "zset" if ":timer:{" in rest else "set"  # of a ring, or of a wheel
    if last == "dead" and ":timer:" not in key and not rest.endswith(":followup"):
        return "stream"  # dead letters of consumers
    return _TYPE_BY_PART.get(last, "")


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of all keys and channels below one prefix.

    Args:
        prefix: of every key.
        shards: number of shards of the users (S).
        database: number of the database of the keys. All databases of a server share its channels, so
            channels of a database other than 0 include its number.

    Attributes:
        part: of the names of keys of consumer groups; subclasses have groups of other streams.
    """

    part: ClassVar[str] = ""
    prefix: str = "presence"
    shards: int = 1
    database: int = 0

    def shard(self, uid: str) -> int:
        """Return the shard of a user: the CRC-32 of the uid's UTF-8 bytes, modulo S."""
        return zlib.crc32(uid.encode()) % self.shards

    def events(self, shard: int) -> str:
        """Stream of all transitions in the shard, in order."""
        return f"{self.prefix}:{{{shard}}}:events"

    def online(self, shard: int) -> str:
        """Hash: uid to the JSON record of its sessions; only users online."""
        return f"{self.prefix}:{{{shard}}}:online"

    def seen(self, shard: int) -> str:
        """Sorted set: uid to Unix milliseconds last seen; only users offline."""
        return f"{self.prefix}:{{{shard}}}:seen"

    def left(self, shard: int) -> str:
        """Hash: uid to the event by which the user went offline; only users in `seen`."""
        return f"{self.prefix}:{{{shard}}}:left"

    def node(self, shard: int, node: str) -> str:
        """Hash: a node's generation in the shard, its last batch number, fence and inbox."""
        return f"{self.prefix}:{{{shard}}}:node:{node}"

    def sessions(self, shard: int, node: str) -> str:
        """Hash: the sessions that a node owns in the shard; see `lib/shard.lua`."""
        return f"{self.node(shard, node)}:sessions"

    def pending_logins(self, shard: int, node: str) -> str:
        """Hash: uid to a node's pending logins; see `lib/changes.lua`."""
        return f"{self.node(shard, node)}:pending"

    def peer_traces(self, shard: int) -> str:
        """Hash: ids of the nodes with a `node` hash in the shard, to a summary of it; see `lib/shard.lua`."""
        return f"{self.prefix}:{{{shard}}}:traces"

    def shard_meta(self, shard: int) -> str:
        """Hash: the version of the form of the shard's data."""
        return f"{self.prefix}:{{{shard}}}:meta"

    def rosters(self, shard: int) -> str:
        """Hash: uid to the users whom the user's clients watch, as the backend has said; see `roster.lua`."""
        return f"{self.prefix}:{{{shard}}}:rosters"

    def pending_nodes(self, shard: int) -> str:
        """Set: ids of the nodes with pending logins, so that a batch need not look for the hash of each."""
        return f"{self.prefix}:{{{shard}}}:holding"

    def absent(self, shard: int) -> str:
        """No key of this name ever exists; see `lib/shard.lua`."""
        return f"{self.prefix}:{{{shard}}}:absent"

    def dead(self, shard: int) -> str:
        """Stream of dead letters: events that a consumer group gave up after several deliveries."""
        return f"{self.prefix}:{{{shard}}}{self.part}:dead"

    def errors(self, shard: int, group: str) -> str:
        """Hash: entry id to its last error in a consumer group; only entries not handled yet."""
        return f"{self.prefix}:{{{shard}}}{self.part}:errors:{group}"

    def consumer(self, shard: int, group: str, consumer: str) -> str:
        """String: which process has the name of a group's consumer that the program gave it; expires."""
        return f"{self.prefix}:{{{shard}}}{self.part}:consumer:{group}:{consumer}"

    def webhook_lock(self, shard: int, group: str) -> str:
        """String: which runner of webhooks sends the shard's events to a consumer group; expires."""
        return f"{self.prefix}:{{{shard}}}{self.part}:webhooks:{group}"

    def webhook_runners(self, group: str) -> str:
        """Sorted set: the group's runners of webhooks, by when they announced themselves; expires."""
        return f"{self.prefix}{self.part}:webhooks:{group}"

    def answers(self, shard: int, token: str) -> str:
        """Hash: node to its answer to a question about a user of the shard; expires in seconds."""
        return f"{self.prefix}:{{{shard}}}:answers:{token}"

    def followups(self, shard: int) -> str:
        """Stream of due follow-ups: what was to be done if a user stayed offline."""
        return f"{self.prefix}:{{{shard}}}:followups"

    def followup_queue(self, shard: int) -> str:
        """Prefix of the keys of the follow-up queue; they share the shard's hash slot."""
        return f"{self.prefix}:{{{shard}}}:followup"

    def room(self, room: str) -> str:
        """Hash: uid to the state of a member; only rooms with members. See `rooms/prelude.lua`."""
        return f"{self.room_prefix(self.shard(room))}{room}"

    def room_prefix(self, shard: int) -> str:
        """Prefix of the keys of the shard's rooms: `room` is this and the name."""
        return f"{self.prefix}:{{{shard}}}:room:"

    def room_sizes(self, shard: int) -> str:
        """Sorted set: each room of the shard that has members to their number."""
        return f"{self.prefix}:{{{shard}}}:rooms:sizes"

    def room_sources(self, shard: int) -> str:
        """Hash: shards of users to the position up to which the shard's rooms have their events."""
        return f"{self.prefix}:{{{shard}}}:rooms:sources"

    def room_events(self, shard: int) -> str:
        """Stream: rooms of the shard that became occupied or vacated, and optionally who joined and left."""
        return f"{self.prefix}:{{{shard}}}:rooms:events"

    def rooms_state(self, shard: int) -> str:
        """Hash: the state of the projector that reads the events of the shard; see `rooms/read.lua`."""
        return f"{self.prefix}:{{{shard}}}:rooms:state"

    def timer(self, name: str) -> str:
        """Prefix of the keys of a timer; all of them share one hash slot."""
        return f"{self.prefix}:timer:{{{name}}}"

    @property
    def nodes(self) -> str:
        """Sorted set: node to the end of its lease, ms of Redis time."""
        return f"{self.prefix}:nodes"

    @property
    def lease_keys(self) -> list[str]:
        """The keys of the lease scripts, in one hash slot: `nodes` and three more.

        Hashes: node to its row, node to its stats (JSON); sorted set: swept node to the time of its removal.
        """
        beside = f"{self.prefix}:{{{self.nodes}}}"
        return [self.nodes, f"{beside}:leases", f"{beside}:stats", f"{beside}:tombs"]

    @property
    def bans(self) -> str:
        """Hash: who is banned to the ban (JSON), and the version of the table; see `bans.lua`."""
        return f"{self.prefix}:bans"

    @property
    def meta(self) -> str:
        """Hash: the data's version and the number of shards."""
        return f"{self.prefix}:meta"

    @property
    def online_channel(self) -> str:
        """Pub/sub channel of users who went online; a hint, not delivered reliably."""
        return f"{self._channels}:online"

    @property
    def offline_channel(self) -> str:
        """Pub/sub channel of users who went offline; a hint, not delivered reliably."""
        return f"{self._channels}:offline"

    def control_channel(self, node: str) -> str:
        """Pub/sub channel for kicks, displacements and messages to the sessions of one node."""
        return f"{self._channels}:node:{node}"

    @property
    def roster_channel(self) -> str:
        """Pub/sub channel of users whose rosters have changed; a hint, not delivered reliably."""
        return f"{self._channels}:rosters"

    @property
    def room_channel(self) -> str:
        """Pub/sub channel of rooms whose members have changed; a hint, not delivered reliably."""
        return f"{self._channels}:rooms"

    def user_channel(self, uid: str) -> str:
        """Pub/sub channel of all changes in how a user is seen; a hint, not delivered reliably.

        A subscriber must also subscribe to `watchers_channel` of the shard, or nothing is published.
        """
        return f"{self.watchers_channel(self.shard(uid))}{uid}"

    def watchers_channel(self, shard: int) -> str:
        """Pub/sub channel whose subscribers show scripts that users are watched; nothing is published on
        it."""
        return f"{self._channels}:{{{shard}}}:user:"

    def changes_channel(self, shard: int) -> str:
        """Pub/sub channel of all changes in how the shard's users are seen; a hint, not delivered reliably.

        Each call of a script that adds entries to the stream publishes one message; see `lib/entries.lua`.
        """
        return f"{self._channels}:{{{shard}}}:changes"

    @property
    def _channels(self) -> str:
        return f"{self.prefix}:@{self.database}" if self.database else self.prefix
