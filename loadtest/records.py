"""What stands in Redis, as it is needed to judge it."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from loadtest.events import Event, WallClock, event_of
from presence.store.client import RedisError
from presence.store.keys import Keys
from presence.subscriber.events import read_entry

LOOK_S = 0.02


class Difference(NamedTuple):
    """Users whose record tells of a session that does not live, and those whose live session has none."""

    ghosts: set[str]
    missing: set[str]


class Records:
    """The data of the nodes.

    Args:
        client_of: given a key, returns a connection to the Redis that has it.
    """

    def __init__(self, client_of: Callable[[str], Any]) -> None:
        self._client_of = client_of

    def compare(self, keys: Keys, live: Mapping[str, str]) -> Difference:
        """Hold the records against the sessions that live: uid to session."""
        found: dict[str, set[str]] = {}
        for key in map(keys.online, range(keys.shards)):
            for uid, text in self._client_of(key).hgetall(key).items():
                found[uid.decode()] = {each["session"] for each in json.loads(text)["sessions"].values()}
        return Difference(
            {uid for uid, sessions in found.items() if sessions != {live.get(uid)}},
            {uid for uid, session in live.items() if session not in found.get(uid, ())},
        )

    def equal_after(self, keys: Keys, live: Callable[[], Mapping[str, str]], limit_s: float) -> float:
        """Wait until the records equal the sessions that live, at most `limit_s`; return for how long."""
        begun = time.monotonic()
        while (seconds := time.monotonic() - begun) < limit_s:
            with contextlib.suppress(RedisError, LookupError):
                if not any(self.compare(keys, live())):
                    break
            time.sleep(LOOK_S)
        return seconds

    def online(self, keys: Keys) -> int:
        """Return how many users have a record."""
        return sum(self._client_of(key).hlen(key) for key in map(keys.online, range(keys.shards)))

    def fields(self, keys: Keys, node: str) -> int:
        """Return how many fields a node's hashes have: its sessions, and a few others in each shard."""
        names = [keys.node(shard, node) for shard in range(keys.shards)]
        with self._client_of(names[0]).pipeline(transaction=False) as pipe:  # of one Redis, it is asked often
            for name in names:
                pipe.hlen(name)
            return sum(pipe.execute())

    def owned(self, keys: Keys, node: str) -> int:
        """Return how many sessions a node owns."""
        hashes = [keys.node(shard, node) for shard in range(keys.shards)]
        return sum(b" " in name for key in hashes for name in self._client_of(key).hkeys(key))

    def events(self, keys: Keys) -> list[Event]:
        """Return all that stands in the streams now."""
        clock = WallClock()
        return [
            event_of(read_entry(shard, raw), clock)
            for shard in range(keys.shards)
            for key in [keys.events(shard)]
            for raw in self._client_of(key).xrange(key)
        ]

    def nodes(self, keys: Keys) -> dict[str, dict[str, Any]]:
        """Return what each node tells of itself beside its lease: pid, sessions and more."""
        stats = self._client_of(keys.lease_keys[2]).hgetall(keys.lease_keys[2])
        return {node.decode(): json.loads(text) for node, text in stats.items()}

    def sweeper(self, keys: Keys, node: str) -> str:
        """Return the id of the node that sweeps another; "" if none does."""
        row = self._client_of(keys.lease_keys[1]).hget(keys.lease_keys[1], node) or b""
        _, *certificate = row.decode().split()
        return certificate[0] if certificate else ""

    def is_buried(self, keys: Keys, node: str) -> bool:
        """Whether a dead node was swept to the end."""
        return not self._client_of(keys.lease_keys[1]).hexists(keys.lease_keys[1], node)
