"""Names of a group's consumers: made here unless the program gives one, used once, forgotten when idle."""

import math
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from presence.common.text import printable
from presence.store.shard_clients import ShardClients
from presence.subscriber.redis_connections import Shards

NAME_LOCK_S: Final = 5.0  # for so long after a crash its successor cannot tell whether it lives
NAME_CHECK_S: Final = 1.0  # often enough that a lock of a live consumer never expires between two events
# An idle consumer without pending entries is of no use to anyone, and comes back with its first read. An hour
# leaves the last ones to be seen in XINFO CONSUMERS.
IDLE_CONSUMER_KEPT_S: Final = 3600.0

# KEYS[1]: the lock of a name. ARGV: this process, milliseconds. Returns the other process that holds it.
_LOCK: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""
_UNLOCK: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"

# Forgets consumers without pending entries: those that are idle, and the one that stops. It is one step,
# because XGROUP DELCONSUMER loses the entries that the consumer has got in the meantime.
# KEYS[1]: the stream. ARGV: group, idle ms, the consumer that stops or ''. Returns their number.
_FORGET: Final = """
local found = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if found.err then
  return (string.find(found.err, 'NOGROUP') or string.find(found.err, 'no such key')) and 0 or found
end
local idle = {}
for _, pairs in ipairs(found) do
  local of = {}
  for place = 1, #pairs, 2 do of[pairs[place]] = pairs[place + 1] end
  local is_over = of.name == ARGV[3] or of.idle >= tonumber(ARGV[2])
  if is_over and of.pending == 0 then idle[#idle + 1] = of.name end
end
for _, name in ipairs(idle) do redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name) end
return #idle
"""


class ConsumerInUse(RuntimeError):
    """Another live process reads a group under the same consumer name; the text names both."""


def new_name() -> str:
    """Return a name that no other consumer has: host, process and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def forget_idle(
    clients: ShardClients, shards: Shards, group: str, which: list[int], stopped: str = ""
) -> None:
    """Forget the consumers of a group that have nothing pending, and are idle or the one that has stopped.

    Raises:
        RedisError: Redis failed.
    """
    keys, idle_ms = shards.keys, round(IDLE_CONSUMER_KEPT_S * 1000)
    clients.ask(
        keys, which, lambda pipe, shard: pipe.eval(_FORGET, 1, keys.events(shard), group, idle_ms, stopped)
    )


class NameLock:
    """Notices that another live process has the same consumer name.

    A key that expires names the process. A process that finds another one there goes on, because that one may
    have crashed a moment ago; if the key is still the other's after its time, the other one lives.
    """

    def __init__(
        self, shards: Shards, group: str, consumer: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shards = shards
        self._group = group
        self._consumer = consumer
        self._clock = clock
        self._process = f"process {os.getpid()} on {socket.gethostname()} ({secrets.token_hex(4)})"
        self._other: tuple[str, float] | None = None  # the other process, and since when it is known
        self.is_refused = False  # because the other one lives
        self.next_check_at = -math.inf  # monotonic time

    def check(self, clients: ShardClients) -> None:
        """Take or renew the lock, which is in the first shard; if that is unreachable, the next check does.

        Raises:
            RedisError: Redis failed.
            ConsumerInUse: another process has held it for longer than a dead one can.
        """
        shard = self._first_shard()
        if shard in clients.reachable(self._shards.keys):
            self._take(clients, self._shards.keys.consumer(shard, self._group, self._consumer))
        self.next_check_at = self._clock() + NAME_CHECK_S

    def _take(self, clients: ShardClients, key: str) -> None:
        asked_at = self._clock()
        answer: Any = clients.at(key).eval(_LOCK, 1, key, self._process, round(NAME_LOCK_S * 1000))
        if answer is None:
            self._other = None
            return
        other = answer.decode("utf-8", "backslashreplace")
        if self._other is None or self._other[0] != other:
            self._other = other, self._clock()
        elif asked_at - self._other[1] > NAME_LOCK_S:  # an answer may be read long after Redis gave it
            self.is_refused = True
            raise ConsumerInUse(
                f"consumer {printable(self._consumer)} of group {printable(self._group)} is used by"
                f" {printable(other)} and by {self._process}: give each its own name, or none"
            )

    def release(self, clients: ShardClients) -> None:
        """Let another process of this name begin; raises `RedisError`."""
        key = self._shards.keys.consumer(self._first_shard(), self._group, self._consumer)
        clients.at(key).eval(_UNLOCK, 1, key, self._process)
        self.next_check_at = -math.inf

    def _first_shard(self) -> int:
        return self._shards.selected(range(self._shards.keys.shards))[0]
