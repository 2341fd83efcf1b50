"""Which runner sends which shard: one at a time, so that the events of a user arrive in order.

The runners of a group announce themselves in a sorted set of Redis, and each derives the same division of the
shards from it. A runner sends a shard only while it holds the shard's lock, which expires. So runners that
disagree for a moment, because one has just come or died, do not both send.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from presence.store.keys import Keys
from presence.store.records import stored_shards
from presence.store.redis_client import RedisError
from presence.store.shard_clients import ShardClients

# What a call of Redis raises although a later one may succeed: Redis is unreachable or refuses; the number of
# shards there is damaged; this process lacks a thread, a descriptor or memory.
RETRIED: Final = (RedisError, ValueError, OSError, MemoryError)

_RENEWED: Final = 1
_ACQUIRED: Final = 2
# KEYS[1]: the lock. ARGV: the runner, milliseconds. Repeating a call whose answer was lost does no harm.
_LOCK: Final = f"""
local answer = {_RENEWED}
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  if not redis.call('SET', KEYS[1], ARGV[1], 'NX') then return 0 end
  answer = {_ACQUIRED}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return answer
"""
_UNLOCK: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


@dataclass(slots=True, eq=False)
class ShardLock:
    """A lock from its acquisition until it is lost; the next acquisition is another one.

    `until`, monotonic seconds: it is certainly held until then, unless it is renewed. 0: lost.
    """

    shard: int
    until: float = 0.0


class ShardLocks:
    """The locks of one runner. Calls block, raise `RedisError`, and are made one at a time.

    Args:
        url, prefix: of the servers' data.
        group: the consumer group that the runners share.
        runner: a name that no other runner has.
        lock_s: a lock expires so many seconds after its last renewal.
        clock: monotonic seconds.
        kind: class of key names, if the streams are not those of users.

    Attributes:
        held: the locks by shard.
    """

    def __init__(
        self,
        url: str,
        prefix: str,
        group: str,
        runner: str,
        *,
        lock_s: float,
        clock: Callable[[], float] = time.monotonic,
        kind: type[Keys] = Keys,
    ) -> None:
        self.held: dict[int, ShardLock] = {}
        self._clients = ShardClients(url)
        self._prefix = prefix
        self._group = group
        self._runner = runner
        self._lock_ms = round(lock_s * 1000)
        self._clock = clock
        self._kind = kind

    def renew(self) -> set[int]:
        """Announce this runner, and renew or get the locks of its share of the shards; return the share.

        Locks of other shards are renewed, too, until they are released.
        """
        return self._clients.read(self._renew)

    def _renew(self, clients: ShardClients) -> set[int]:
        keys = self._kind(self._prefix, stored_shards(clients, self._prefix) or 1)
        share = self._share(clients, keys)
        begun = self._clock()

        def fill(pipe: Any, shard: int) -> None:
            pipe.eval(_LOCK, 1, keys.webhook_lock(shard, self._group), self._runner, self._lock_ms)

        for shard, (answer,) in clients.ask(keys, share | self.held.keys(), fill).items():
            if answer != _RENEWED and (lost := self.held.pop(shard, None)):
                lost.until = 0.0
            if answer:
                self.held.setdefault(shard, ShardLock(shard)).until = begun + self._lock_ms / 1000
        return share

    def release(self, shards: Iterable[int]) -> None:
        """Let other runners have the locks of these shards that are held."""
        released = {shard: lock for shard in shards if (lock := self.held.pop(shard, None))}
        for lock in released.values():
            lock.until = 0.0
        keys = self._kind(self._prefix)

        def fill(pipe: Any, shard: int) -> None:
            pipe.eval(_UNLOCK, 1, keys.webhook_lock(shard, self._group), self._runner)

        self._clients.ask(keys, released, fill)

    def leave(self) -> None:
        """Let other runners have all shards now."""
        self.release([*self.held])
        key = self._kind(self._prefix).webhook_runners(self._group)
        self._clients.at(key).zrem(key, self._runner)

    def close(self) -> None:
        self._clients.close()

    def _share(self, clients: ShardClients, keys: Keys) -> set[int]:
        key = keys.webhook_runners(self._group)
        client = clients.at(key)
        seconds, microseconds = client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        with client.pipeline() as pipe:
            pipe.zadd(key, {self._runner: now_ms})
            pipe.zremrangebyscore(key, "-inf", now_ms - self._lock_ms)
            pipe.zrange(key, 0, -1)
            pipe.pexpire(key, self._lock_ms)
            *_, names, _ = pipe.execute()
        runners = sorted(names)
        return set(range(runners.index(self._runner.encode()), keys.shards, len(runners)))
