"""Random commands, good and bad ones, on a few keys of every type."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.twins import Twins

# Arguments that look like numbers go as numbers in some calls, as a script may give them. Errors are compared
# by their code: which of several mistakes a server names first is nobody's concern.
TEXT: Final = """local words = {}
for i, word in ipairs(ARGV) do words[i] = KEYS[1] == 'numbers' and tonumber(word) or word end
local reply = redis.pcall(unpack(words))
if type(reply) == 'table' and reply.err then return {'error', string.match(reply.err, '^%S+')} end
if type(reply) == 'table' and reply.ok then return {'status', reply.ok} end
if reply == false then return 'nothing' end
if words[1] ~= 'XINFO' then return reply end
local told = {}
for i = 1, #reply, 2 do
  if not string.find(reply[i], 'radix', 1, true) then
    told[#told + 1] = reply[i]
    told[#told + 1] = reply[i + 1]
  end
end
return told"""
FIELDS: Final = ("f", "g", "h", "", "\x00é")
NUMBERS: Final = (
    "0",
    "1",
    "-1",
    "7",
    "12",
    "01",
    "1.5",
    "1e3",
    "x",
    "",
    " 1",
    "4611686018427387904",
)
SCORES: Final = ("0", "1", "-1", "2.5", "1e20", "inf", "-inf", "nan", "x", "0.1", "1795276770213")
ENDS: Final = ("-inf", "+inf", "0", "(0", "1", "(1", "2.5", "(2.5", "x")
IDS: Final = (
    "*",
    "*",
    "*",
    "5-1",
    "5-2",
    "5-*",
    "6",
    "0-0",
    "0-1",
    "9999999999999-3",
    "9999999999999-*",
    "x",
    "1-x",
    "-",
)
RANGE_ENDS: Final = ("-", "+", "5", "(5-1", "5-2", "(5", "9999999999999", "x")


class CommandPlay:
    """One sequence of commands."""

    def __init__(self, random: Random, twins: Twins) -> None:
        self._random = random
        self._twins = twins

    def step(self) -> None:
        """Perform one command on both servers."""
        pick = self._random.choice
        name = pick(list(SHAPES))
        words: list[Any] = [name, *SHAPES[name](self)]
        if self._random.random() < 0.05:
            words = words[:-1]
        if self._random.random() < 0.03:
            words.append(pick(("more", "1")))
        self._twins.run(TEXT, [pick(("texts", "texts", "numbers"))], words)

    def key(self, kind: str) -> str:
        """Return mostly a key of that type."""
        return self._random.choice(
            (f"{kind}1", f"{kind}1", f"{kind}2", f"{kind}3", self._random.choice(KINDS) + "1")
        )

    def some(self, values: tuple[str, ...], *, least: int = 1) -> list[str]:
        """Return a few of these, repeated ones too."""
        return [self._random.choice(values) for _ in range(self._random.randrange(least, 5))]

    def one(self, *values: str) -> str:
        """Return one of these."""
        return self._random.choice(values)

    def options(self, *choices: list[str]) -> list[str]:
        """Return mostly one of these."""
        return self._random.choice(([], *choices))


KINDS: Final = ("str", "hash", "set", "zset", "stream")
Shape = Callable[[CommandPlay], list[str]]
SHAPES: Final[dict[str, Shape]] = {
    "GET": lambda p: [p.key("str")],
    "SETRANGE": lambda p: [p.key(p.one("str", "hash")), p.one("0", "1", "7", "-1", "x"), p.one("", "ab")],
    "SET": lambda p: [
        *(p.key("str"), p.one(*NUMBERS, "text")),
        *p.options(
            ["EX", p.one(*NUMBERS)], ["px", "5000"], ["NX"], ["XX"], ["KEEPTTL"], ["EX"], ["NX", "XX"]
        ),
    ],
    "DEL": lambda p: [p.key(p.one(*KINDS))],
    "EXISTS": lambda p: [p.key("hash"), p.key("str"), p.key("str")],
    "TYPE": lambda p: [p.key(p.one(*KINDS))],
    "PEXPIRE": lambda p: [p.key(p.one(*KINDS)), p.one("100000", "1000001", "0", "-1", *NUMBERS)],
    "PEXPIRETIME": lambda p: [p.key(p.one(*KINDS))],
    "HGET": lambda p: [p.key("hash"), p.one(*FIELDS)],
    "HMGET": lambda p: [p.key("hash"), *p.some(FIELDS)],
    "HSET": lambda p: [p.key("hash"), *p.some(FIELDS), p.one(*NUMBERS)],
    "HSETNX": lambda p: [p.key("hash"), p.one(*FIELDS), p.one(*NUMBERS)],
    "HDEL": lambda p: [p.key("hash"), *p.some(FIELDS)],
    "HGETALL": lambda p: [p.key("hash")],
    "HEXISTS": lambda p: [p.key("hash"), p.one(*FIELDS)],
    "HLEN": lambda p: [p.key("hash")],
    "HSCAN": lambda p: [
        p.key("hash"),
        p.one("0", "0", "x"),
        *p.options(["COUNT", p.one(*NUMBERS)], ["MATCH", "f*"], ["COUNT"]),
    ],
    "SADD": lambda p: [p.key("set"), *p.some(FIELDS)],
    "SREM": lambda p: [p.key("set"), *p.some(FIELDS)],
    "SMEMBERS": lambda p: [p.key("set")],
    "ZADD": lambda p: [
        *(
            p.key("zset"),
            *p.options(["NX"], ["XX"], ["GT"], ["LT", "CH"], ["XX", "GT", "CH"], ["NX", "XX"], ["NX", "GT"]),
        ),
        *(word for field in p.some(FIELDS) for word in (p.one(*SCORES[:6], p.one(*SCORES)), field)),
    ],
    "ZREM": lambda p: [p.key("zset"), *p.some(FIELDS)],
    "ZSCORE": lambda p: [p.key("zset"), p.one(*FIELDS)],
    "ZREMRANGEBYSCORE": lambda p: [p.key("zset"), p.one(*ENDS), p.one(*ENDS)],
    "ZRANGEBYSCORE": lambda p: [
        *(p.key("zset"), p.one(*ENDS), p.one(*ENDS)),
        *p.options(
            ["WITHSCORES"],
            ["LIMIT", p.one(*NUMBERS), p.one(*NUMBERS)],
            ["LIMIT", "1"],
            ["withscores", "limit", "0", "2"],
        ),
    ],
    "ZRANGE": lambda p: [
        *(p.key("zset"), p.one("0", "1", "-2", "x"), p.one("-1", "0", "2", "99")),
        *p.options(
            ["WITHSCORES"], ["BYSCORE"], ["BYSCORE", "LIMIT", "0", "1"], ["LIMIT", "0", "1"], ["what"]
        ),
    ],
    "XADD": lambda p: [
        p.key("stream"),
        *p.options([], ["NOMKSTREAM"], ["MAXLEN", p.one("=", "~"), "1000"], ["MAXLEN", p.one("2", *NUMBERS)]),
        *(p.one(*IDS), *p.some(FIELDS), "value"),
    ],
    "XDEL": lambda p: [p.key("stream"), *p.some(tuple(word for word in IDS if "*" not in word))],
    "XTRIM": lambda p: [
        p.key("stream"),
        p.one("MAXLEN", "maxlen", "x"),
        *p.options(["="], ["~", "1000"]),
        p.one("3", *NUMBERS),
    ],
    "XRANGE": lambda p: [
        p.key("stream"),
        p.one(*RANGE_ENDS),
        p.one(*RANGE_ENDS),
        *p.options(["COUNT", p.one(*NUMBERS)], ["what"]),
    ],
    "XINFO": lambda p: [p.one("STREAM", "stream"), p.key("stream")],
    "PUBLISH": lambda p: [p.one("presence:online", "nobody"), "text"],
    "PUBSUB": lambda p: [p.one("NUMSUB", "numpat"), *p.options(["presence:online", "nobody"])],
    "EVALSHA": lambda _: ["x", "0"],
    "NONESUCH": lambda p: [p.key("str")],
}
