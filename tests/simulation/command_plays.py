"""Random commands on a few keys of every type, as the scripts give them."""

from random import Random
from typing import Any, Final

from tests.simulation.twins import Twins

# Arguments that look like numbers go as numbers in some calls, as a script may give them. Errors are compared
# by their code, and of a stream's description what the scripts read.
TEXT: Final = """local words = {}
for i, word in ipairs(ARGV) do words[i] = KEYS[1] == 'numbers' and tonumber(word) or word end
local reply = redis.pcall(unpack(words))
if type(reply) == 'table' and reply.err then return {'error', string.match(reply.err, '^%S+')} end
if type(reply) == 'table' and reply.ok then return {'status', reply.ok} end
if reply == false then return 'nothing' end
if words[1] ~= 'XINFO' then return reply end
local facts = {}
for i = 1, #reply, 2 do
  local is_read = string.find('length last-generated-id first-entry last-entry', reply[i], 1, true)
  if is_read then facts[#facts + 1] = {reply[i], reply[i + 1]} end
end
table.sort(facts, function(fact, other) return fact[1] < other[1] end)
return facts"""
TYPES: Final = ("str", "hash", "set", "zset", "stream")
DRAWN: Final = {
    "field": ("f", "g", "h", "", "\x00é"),
    "value": ("0", "-1", "12", "01", "1.5", "1e3", "x", "", " 1", "4611686018427387904"),
    "score": ("0", "1", "-1", "2.5", "1e20", "inf", "-inf", "0.1", "1795276770213"),
    "id": ("5-1", "5-2", "0-1", "9999999999999-3"),
    "ms": ("0", "100000", "1000001"),
    "count": ("1", "3", "100"),
    "channel": ("presence:online", "nobody"),
}
# Each with the kinds of its arguments: a type for a key, or what is drawn; "fields": a few, "type": any.
COMMANDS: Final = {
    "SET": "str value",
    "SETRANGE": "str 0 empty",
    "DEL": "type",
    "EXISTS": "type",
    "PEXPIRE": "type ms",
    "HGET": "hash field",
    "HMGET": "hash fields",
    "HSET": "hash field value field value",
    "HSETNX": "hash field value",
    "HDEL": "hash fields",
    "HGETALL": "hash",
    "HEXISTS": "hash field",
    "HLEN": "hash",
    "HSCAN": "hash 0 COUNT count",
    "SADD": "set fields",
    "SREM": "set fields",
    "SMEMBERS": "set",
    "ZADD": "zset score field score field",
    "ZREM": "zset fields",
    "ZCARD": "zset",
    "ZSCORE": "zset field",
    "ZSCAN": "zset 0 COUNT count",
    "ZRANGE": "zset 0 -1 WITHSCORES",
    "ZRANGEBYSCORE": "zset score score LIMIT 0 count",
    "ZREMRANGEBYSCORE": "zset score score",
    "XADD": "stream id field value",
    "XADD *": "stream * field value field value",
    "XRANGE": "stream id + COUNT count",
    "XRANGE to": "stream id id COUNT count",
    "XDEL": "stream id",
    "XTRIM": "stream MAXLEN ~ 100",
    "XINFO": "STREAM stream",
    "PUBLISH": "channel value",
    "PUBSUB": "NUMSUB channel channel",
    "PUBSUB NUMPAT": "NUMPAT",
}


class CommandPlay:
    """One sequence of commands."""

    def __init__(self, random: Random, twins: Twins) -> None:
        self._random = random
        self._twins = twins

    def step(self) -> None:
        name = self._random.choice(list(COMMANDS))
        words: list[Any] = [name.partition(" ")[0]]
        for kind in COMMANDS[name].split():
            words += self._drawn(kind)
        self._twins.run(TEXT, [self._random.choice(("texts", "texts", "numbers"))], words)

    def _drawn(self, kind: str) -> list[str]:
        pick = self._random.choice
        if kind == "fields":
            return [pick(DRAWN["field"]) for _ in range(self._random.randrange(1, 5))]
        if kind == "type" or kind in TYPES:  # a key, now and then of another type
            usual = pick(TYPES) if kind == "type" else kind
            return [pick((f"{usual}1", f"{usual}1", f"{usual}2", f"{usual}3", f"{pick(TYPES)}1"))]
        return ["" if kind == "empty" else pick(DRAWN.get(kind, (kind,)))]
