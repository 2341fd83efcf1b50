"""The commands that the scripts and the store use, in the forms in which they use them.

Another form is a mistake of the caller, not an error reply: the call fails with a ValueError, or a
TypeError, that ends the simulation.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.values import (
    NO_ID,
    EntryId,
    Hash,
    Members,
    Reply,
    ReplyError,
    Sorted,
    StatusReply,
    Stream,
    Text,
    entry_id,
    id_text,
    number_text,
)

if TYPE_CHECKING:
    from tests.simulation.fake.server import FakeRedis

# A hash within these is kept as one piece, which HSCAN gives whole.
LISTPACK_FIELDS: Final = 512
LISTPACK_VALUE_BYTES: Final = 64
LISTPACK_MEMBERS: Final = 128  # of a sorted set
NODE_ENTRIES: Final = 100  # Redis' stream-node-max-entries: with ~ only whole nodes go


def _expect(given: object, *known: object) -> None:
    if given not in known:
        raise ValueError(f"the fake Redis does not know {given!r} here")


# Keys and strings


def set_(db: FakeRedis, key: bytes, value: bytes) -> Reply:
    db.remove(key)
    db.data[key] = Text(value)
    return StatusReply(b"OK")


def setrange(db: FakeRedis, key: bytes, offset: bytes, value: bytes) -> Reply:
    """Write nothing: the scripts never give another text."""
    _expect((offset, value), (b"0", b""))
    return len(db.read(key, Text) or b"")


def delete(db: FakeRedis, *keys: bytes) -> Reply:
    return sum(map(db.remove, keys))


def exists(db: FakeRedis, key: bytes) -> Reply:
    return int(key in db.data)


def pexpire(db: FakeRedis, key: bytes, ms: bytes) -> Reply:
    if key not in db.data:
        return 0
    if int(ms) <= 0:
        return int(db.remove(key))
    db.set_deadline(key, db.now_us // 1000 + int(ms))
    return 1


# The server


def time(db: FakeRedis) -> Reply:
    return [b"%d" % part for part in divmod(db.now_us, 1_000_000)]


def info(db: FakeRedis, *sections: bytes) -> Reply:
    for section in sections:
        _expect(section, b"replication", b"cluster")
    return b"\r\n".join(_info(db.replication_id, section) for section in sections)


@lru_cache(maxsize=1000)
def _info(replication_id: str, section: bytes) -> bytes:
    if section == b"cluster":
        return b"# Cluster\r\ncluster_enabled:0\r\n"
    text = f"# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:{replication_id}\r\n"
    return text.encode()


def publish(db: FakeRedis, channel: bytes, message: bytes) -> Reply:
    if channel not in db.channels:
        return 0
    db.published.append((channel, message))
    return 1


def pubsub(db: FakeRedis, what: bytes, *channels: bytes) -> Reply:
    _expect(what, b"NUMSUB", b"NUMPAT")
    if what == b"NUMPAT":
        return 0
    return [part for each in channels for part in (each, int(each in db.channels))]


# Hashes


def hget(db: FakeRedis, key: bytes, field: bytes) -> Reply:
    found = db.read(key, Hash)
    return found.get(field) if found else None


def hmget(db: FakeRedis, key: bytes, *fields: bytes) -> Reply:
    found = db.read(key, Hash)
    return list(map(found.get, fields)) if found else [None] * len(fields)


def hset(db: FakeRedis, key: bytes, *pairs: bytes) -> Reply:
    target = db.write(key, Hash)
    before = len(target)
    target.update(zip(pairs[::2], pairs[1::2], strict=True))
    return len(target) - before


def hsetnx(db: FakeRedis, key: bytes, field: bytes, value: bytes) -> Reply:
    target = db.write(key, Hash)
    if field in target:
        return 0
    target[field] = value
    return 1


def hdel(db: FakeRedis, key: bytes, *fields: bytes) -> Reply:
    return _remove_names(db, key, db.read(key, Hash), fields)


def hgetall(db: FakeRedis, key: bytes) -> Reply:
    return [text for pair in (db.read(key, Hash) or {}).items() for text in pair]


def hexists(db: FakeRedis, key: bytes, field: bytes) -> Reply:
    return int(field in (db.read(key, Hash) or ()))


def hlen(db: FakeRedis, key: bytes) -> Reply:
    return len(db.read(key, Hash) or ())


def hscan(db: FakeRedis, key: bytes, cursor: bytes, option: bytes, wanted: bytes) -> Reply:
    """Return fields in the order of their CRC: as in Redis, those that stay through a scan are returned."""
    _expect(option, b"COUNT")
    target = db.read(key, Hash) or Hash()
    after, chosen = 0, list(target)
    if not _is_listpack(target):
        after, chosen = _scanned(chosen, int(cursor), int(wanted))
    return [b"%d" % after, [text for field in chosen for text in (field, target[field])]]


def _scanned(names: list[bytes], cursor: int, count: int) -> tuple[int, list[bytes]]:
    """Return the next cursor of a scan, 0 at its end, and the names of this step."""
    if len(names) <= count:
        return 0, names
    ahead = sorted((zlib.crc32(name), name) for name in names)
    ahead = [pair for pair in ahead if pair[0] >= cursor]
    end = count
    while 0 < end < len(ahead) and ahead[end][0] == ahead[end - 1][0]:
        end += 1
    return (ahead[end][0] if end < len(ahead) else 0), [name for _, name in ahead[:end]]


def _is_listpack(target: Hash) -> bool:
    return len(target) <= LISTPACK_FIELDS and all(
        len(field) <= LISTPACK_VALUE_BYTES and len(value) <= LISTPACK_VALUE_BYTES
        for field, value in target.items()
    )


def _remove_names(db: FakeRedis, key: bytes, target: Hash | Members | None, names: tuple[bytes, ...]) -> int:
    """Remove fields or members, and the key with the last one; return how many there were."""
    if target is None:
        return 0
    before = len(target)
    for name in names:
        target.pop(name, None)
    gone = before - len(target)
    if not target:
        db.remove(key)
    return gone


# Sets


def sadd(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    target = db.write(key, Members)
    before = len(target)
    target.update(dict.fromkeys(members))
    return len(target) - before


def srem(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    return _remove_names(db, key, db.read(key, Members), members)


def smembers(db: FakeRedis, key: bytes) -> Reply:
    return list(db.read(key, Members) or ())


# Sorted sets


def zadd(db: FakeRedis, key: bytes, *pairs: bytes) -> Reply:
    target = db.write(key, Sorted)
    before = len(target)
    for score, member in zip(map(float, pairs[::2]), pairs[1::2], strict=True):
        target.put(member, score)
    return len(target) - before


def zrem(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    target = db.read(key, Sorted)
    if target is None:
        return 0
    count = sum(map(target.remove, members))
    if not target:
        db.remove(key)
    return count


def zcard(db: FakeRedis, key: bytes) -> Reply:
    return len(db.read(key, Sorted) or ())


def zscan(db: FakeRedis, key: bytes, cursor: bytes, option: bytes, wanted: bytes) -> Reply:
    """Return members with their scores, as `hscan`."""
    _expect(option, b"COUNT")
    target = db.read(key, Sorted) or Sorted()
    after, chosen = 0, [member for _, member in target.order]
    if len(chosen) > LISTPACK_MEMBERS or any(len(member) > LISTPACK_VALUE_BYTES for member in chosen):
        after, chosen = _scanned(chosen, int(cursor), int(wanted))
    return [b"%d" % after, [text for m in chosen for text in (m, number_text(target.scores[m]))]]


def zscore(db: FakeRedis, key: bytes, member: bytes) -> Reply:
    target = db.read(key, Sorted)
    score = target.scores.get(member) if target else None
    return None if score is None else number_text(score)


def zmscore(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    return [zscore(db, key, member) for member in members]


def zrange(db: FakeRedis, key: bytes, start: bytes, stop: bytes, option: bytes) -> Reply:
    _expect((start, stop, option), (b"0", b"-1", b"WITHSCORES"))
    target = db.read(key, Sorted)
    pairs = target.order if target else []
    return [text for score, member in pairs for text in (member, number_text(score))]


def zrangebyscore(
    db: FakeRedis, key: bytes, low: bytes, high: bytes, option: bytes, offset: bytes, limit: bytes
) -> Reply:
    _expect((option, offset), (b"LIMIT", b"0"))
    target = db.read(key, Sorted)
    found = target.between(float(low), float(high)) if target else []
    return [member for _, member in found[: int(limit)]]


def zremrangebyscore(db: FakeRedis, key: bytes, low: bytes, high: bytes) -> Reply:
    target = db.read(key, Sorted)
    found = target.between(float(low), float(high)) if target else []
    return zrem(db, key, *(member for _, member in found))


# Streams


def xadd(db: FakeRedis, key: bytes, wanted: bytes, *words: bytes) -> Reply:
    if wanted == b"MAXLEN":
        roughly, entries, wanted, *pairs = words
        given = xadd(db, key, wanted, *pairs)
        xtrim(db, key, b"MAXLEN", roughly, entries)
        return given
    target = db.read(key, Stream)
    given = _next_id(target.last if target else NO_ID, wanted, db.now_us // 1000)
    target = target or db.write(key, Stream)
    target.last = given
    target.ids.append(given)
    target.entries.append(words)
    return id_text(given)


def _next_id(last: EntryId, wanted: bytes, now_ms: int) -> EntryId:
    if wanted == b"*":
        return (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
    given = entry_id(wanted)
    if given <= last:
        raise ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return given


def xtrim(db: FakeRedis, key: bytes, option: bytes, roughly: bytes, entries: bytes) -> Reply:
    _expect((option, roughly), (b"MAXLEN", b"~"))
    target = db.read(key, Stream)
    if target is None:
        return 0
    surplus = max(0, len(target.ids) - int(entries))
    surplus -= surplus % NODE_ENTRIES
    del target.ids[:surplus], target.entries[:surplus]
    return surplus


def xrange(db: FakeRedis, key: bytes, start: bytes, stop: bytes, option: bytes, limit: bytes) -> Reply:
    """Return entries from an id on, to the last or to an id."""
    _expect(option, b"COUNT")
    target = db.read(key, Stream)
    if target is None:
        return []
    first = bisect_left(target.ids, entry_id(start))
    after = len(target.ids) if stop == b"+" else bisect_right(target.ids, entry_id(stop))
    return [_entry(target, place) for place in range(first, min(after, first + int(limit)))]


def _entry(target: Stream, place: int) -> Reply:
    return [id_text(target.ids[place]), list(target.entries[place])]


def xrevrange(db: FakeRedis, key: bytes, stop: bytes, start_ms: bytes, option: bytes, limit: bytes) -> Reply:
    """Return the id of the last entry, without its fields, unless it is from before `start_ms`."""
    _expect((stop, option, limit), (b"+", b"COUNT", b"1"))
    target = db.read(key, Stream)
    if target is None or not target.ids or target.ids[-1][0] < int(start_ms):
        return []
    return [[id_text(target.ids[-1]), []]]


def xdel(db: FakeRedis, key: bytes, entry: bytes) -> Reply:
    target, wanted = db.read(key, Stream), entry_id(entry)
    if target is None or wanted not in target.ids:
        return 0
    place = target.ids.index(wanted)
    del target.ids[place], target.entries[place]
    return 1


def xinfo(db: FakeRedis, what: bytes, key: bytes) -> Reply:
    _expect(what, b"STREAM")
    target = db.read(key, Stream)
    if target is None:
        raise ReplyError("ERR no such key")
    first, last = (_entry(target, place) if target.ids else None for place in (0, -1))
    facts = [b"length", len(target.ids), b"last-generated-id", id_text(target.last)]
    return [*facts, b"first-entry", first, b"last-entry", last]


Command = Callable[..., Reply]
COMMANDS: Final[Mapping[bytes, Command]] = {
    b"SET": set_,
    b"DEL": delete,
    **{
        command.__name__.upper().encode(): command
        for command in (
            *(setrange, exists, pexpire, time, info, publish, pubsub),
            *(hget, hmget, hset, hsetnx, hdel, hgetall, hexists, hlen, hscan),
            *(sadd, srem, smembers),
            *(zadd, zrem, zcard, zscore, zmscore, zscan, zrange, zrangebyscore, zremrangebyscore),
            *(xadd, xtrim, xrange, xrevrange, xdel, xinfo),
        )
    },
}
