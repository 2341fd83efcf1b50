"""Scripts run on the fake Redis and on a real one at the same microsecond, and what both made of them.

A script finds its server's time standing still. The real server goes first and tells its time, to which the
fake one is set: so entry ids, deadlines and all times are compared as they are. The order of fields and of
members, which servers are free to choose, is made the same for both.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack
import redis

from tests.simulation.fake.client import packed
from tests.simulation.fake.commands import COMMANDS, Command
from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import (
    Hash,
    Members,
    Reply,
    ReplyError,
    Sorted,
    Stream,
    Text,
    Value,
    id_text,
)

# Puts into order what has none in Redis and Lua. Returns [time, whether it went well, reply or error].
WRAPPER: Final = """local STEPS = {{SMEMBERS = 1, HGETALL = 2}}
local function sorted(flat, step)
  local order, result = {{}}, {{}}
  for i = 1, #flat, step do order[#order + 1] = i end
  table.sort(order, function(i, j) return flat[i] < flat[j] end)
  for _, i in ipairs(order) do
    for j = i, i + step - 1 do result[#result + 1] = flat[j] end
  end
  return result
end
local function call(name, ...)
  local reply = redis.call(name, ...)
  if STEPS[name] then return sorted(reply, STEPS[name]) end
  if name == 'HSCAN' or name == 'ZSCAN' then return {{reply[1], sorted(reply[2], 2)}} end
  return reply
end
local function sorted_pairs(fields)
  local names, i = {{}}, 0
  for name in pairs(fields) do names[#names + 1] = name end
  table.sort(names)
  return function()
    i = i + 1
    if names[i] ~= nil then return names[i], fields[names[i]] end
  end
end
local function body(redis, pairs)
{text}
end
local time = redis.call('TIME')
local ok, reply = pcall(body, {{call = call, pcall = redis.pcall, sha1hex = redis.sha1hex}}, sorted_pairs)
if type(reply) == 'table' and reply.err then ok, reply = false, reply.err end
return {{time, ok and 1 or 0, reply}}"""
LAST_MESSAGE: Final = b"twins:last"
TIMEOUT_S: Final = 5.0
SHOWN_CHARACTERS: Final = 300  # characters of a call, where it went wrong


class Different(AssertionError):
    """The fake Redis behaved differently from the real one."""


class Twins:
    """A fake and a real server that get the same commands; all keys of the real one are deleted.

    Args:
        channels: to subscribe to on both.
        commands: of the fake server.
    """

    def __init__(
        self,
        client: "redis.Redis",
        channels: Sequence[bytes] = (),
        commands: Mapping[bytes, Command] = COMMANDS,
    ) -> None:
        self._real = client
        self._channels = channels
        self._commands = commands
        self._time_us = 0
        self._digests: dict[str, str] = {}
        self._listener: Any = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis-py's
        self._listener.subscribe(LAST_MESSAGE, *channels)
        for _ in (LAST_MESSAGE, *channels):
            self._listener.get_message(timeout=TIMEOUT_S)
        self.start()

    def start(self) -> None:
        """Start again without keys, in the replication history of the real server."""
        self._real.flushall()
        info: Any = self._real.info("replication")
        self.fake = FakeRedis(
            lambda: self._time_us / 1_000_000, commands=self._commands, channels=self._channels
        )
        self.fake.replication_id = info["master_replid"]

    def close(self) -> None:
        self._listener.close()

    def run(self, text: str, keys: Sequence[Any], arguments: Sequence[Any]) -> Reply:
        """Run a script on both and compare their answers; return the fake's, the text of an error too.

        Raises:
            Different: they differ.
        """
        return self.attempt(text, keys, arguments)[1]

    def attempt(self, text: str, keys: Sequence[Any], arguments: Sequence[Any]) -> tuple[bool, Reply]:
        """As `run`; return whether it went well, too."""
        framed = WRAPPER.format(text=text)
        if text not in self._digests:
            self._digests[text] = str(self._real.script_load(framed))
        words = [len(keys), *keys, *arguments]
        real: Any = self._real.evalsha(self._digests[text], *words)
        seconds, microseconds = map(int, real[0])
        self._time_us = seconds * 1_000_000 + microseconds
        try:
            fake = self.fake.execute(b"EVAL", framed.encode(), *packed(words))
        except ReplyError as error:
            raise Different(f"the fake fails: {error}") from error
        _compare(
            f"time and answer to {repr([*keys, *arguments])[:SHOWN_CHARACTERS]}",
            canonical(real),
            canonical(fake),
        )
        return bool(fake[1]), fake[2]

    def finish(self) -> None:
        """Compare all keys and all published messages.

        Raises:
            Different: they differ.
        """
        _compare("keys", self._real_keys(), self._fake_keys())
        self._real.publish(LAST_MESSAGE, b"")
        published = []
        while (message := self._listener.get_message(timeout=TIMEOUT_S))["channel"] != LAST_MESSAGE:
            published.append((message["channel"], message["data"]))
        _compare("what was published", canonical(published), canonical(self.fake.published))

    def _real_keys(self) -> dict[bytes, Any]:
        """Return the deadline and value of each key of the real server."""
        real: Any = self._real
        read = {
            b"string": real.get,
            b"hash": real.hgetall,
            b"set": real.smembers,
            b"zset": lambda key: real.zrange(key, 0, -1, withscores=True),
            b"stream": lambda key: [real.xinfo_stream(key)["last-generated-id"], real.xrange(key)],
        }
        keys = list(real.scan_iter())
        return {key: canonical([real.pexpiretime(key), read[real.type(key)](key)]) for key in keys}

    def _fake_keys(self) -> dict[bytes, Any]:
        deadlines = self.fake.deadlines
        return {
            key: canonical([deadlines.get(key, -1), _python_value(value)])
            for key, value in self.fake.data.items()
        }


def _python_value(value: Value) -> Any:
    """Return the value of a fake key as redis-py would return it."""
    match value:
        case Text():
            return bytes(value)
        case Hash():
            return dict(value)
        case Members():
            return set(value)
        case Sorted():
            return [(member, score) for score, member in value.order]
        case Stream():
            fields = [dict(zip(words[::2], words[1::2], strict=True)) for words in value.entries]
            return [id_text(value.last), list(zip(map(id_text, value.ids), fields, strict=True))]


def _compare(what: str, real: Any, fake: Any) -> None:
    """Raise for the first difference, at any depth."""
    if isinstance(real, list) and isinstance(fake, list) and len(real) == len(fake):
        for place, pair in enumerate(zip(real, fake, strict=True)):
            _compare(f"{what}, {place}", *pair)
    elif isinstance(real, dict) and isinstance(fake, dict) and real.keys() == fake.keys():
        for key, value in real.items():
            _compare(f"{what}, {key!r}", value, fake[key])
    elif real != fake:
        raise Different(f"{what}: the real one has {real!r}, the fake one {fake!r}")


def canonical(value: Any) -> Any:
    """Return a value with MessagePack and JSON decoded, and maps without order."""
    match value:
        case bytes():
            return _decoded(value)
        case list() | tuple():
            return [canonical(each) for each in value]
        case dict():
            return {key: canonical(each) for key, each in value.items()}
        case redis.ResponseError():
            return str(value)
    return value


def _decoded(text: bytes) -> Any:
    if text[:1] in {b"{", b"["}:
        try:
            return json.loads(text)
        except ValueError:
            return text
    if text and 0x80 <= text[0] < 0xA0:  # a map or an array
        try:
            return canonical(msgpack.unpackb(text, raw=True))
        except ValueError:
            return text
    return text
