"""What stands in Redis, as it is needed to judge it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from loadtest.servers import LocalRedis
from loadtest.stream_events import StreamEvent, WallClock, stream_event
from presence.store.keys import Keys
from presence.subscriber.events import read_entry


class Difference(NamedTuple):
    """Users whose record has a session that does not live, and users whose live session has no record."""

    ghosts: set[str]
    missing: set[str]


class Records:
    """The data of the nodes.

    Args:
        client_of: returns a connection to the Redis with a key.
    """

    def __init__(self, client_of: Callable[[str], Any]) -> None:
        self._client_of = client_of

    def compare(self, keys: Keys, live: Mapping[str, str]) -> Difference:
        """Compare the records with the live sessions, uid to session."""
        found: dict[str, set[str]] = {}
        for key in map(keys.online, range(keys.shards)):
            for uid, text in self._client_of(key).hgetall(key).items():
                found[uid.decode()] = {each["session"] for each in json.loads(text)["sessions"].values()}
        return Difference(
            {uid for uid, sessions in found.items() if sessions != {live.get(uid)}},
            {uid for uid, session in live.items() if session not in found.get(uid, ())},
        )

    def owned(self, keys: Keys, node: str) -> int:
        hashes = [keys.sessions(shard, node) for shard in range(keys.shards)]
        return sum(self._client_of(key).hlen(key) for key in hashes)

    def events(self, keys: Keys) -> list[StreamEvent]:
        clock = WallClock()
        return [
            stream_event(read_entry(shard, raw), clock)
            for shard in range(keys.shards)
            for key in [keys.events(shard)]
            for raw in self._client_of(key).xrange(key)
        ]

    def nodes(self, keys: Keys) -> dict[str, dict[str, Any]]:
        """Return the stats that each node writes beside its lease: pid, sessions and more."""
        stats = self._client_of(keys.lease_keys[2]).hgetall(keys.lease_keys[2])
        return {node.decode(): json.loads(text) for node, text in stats.items()}

    def sweeper(self, keys: Keys, node: str) -> str:
        """Return the id of the node that sweeps another, or ""."""
        row = self._client_of(keys.lease_keys[1]).hget(keys.lease_keys[1], node) or b""
        _, *certificate = row.decode().split()
        return certificate[0] if certificate else ""

    def is_swept(self, keys: Keys, node: str) -> bool:
        """Whether the sweep of a dead node has finished."""
        return not self._client_of(keys.lease_keys[1]).hexists(keys.lease_keys[1], node)


class Data(LocalRedis, Records):
    """A `LocalRedis`, and its records."""

    def __init__(self, *, keep: bool = False) -> None:
        Records.__init__(self, lambda _key: self.client)
        LocalRedis.__init__(self, keep=keep)
