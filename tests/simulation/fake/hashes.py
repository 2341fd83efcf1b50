"""Commands on hashes and sets."""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.values import (
    SYNTAX,
    Command,
    Hash,
    Members,
    Reply,
    ReplyError,
    integer,
)

if TYPE_CHECKING:
    from tests.simulation.fake.server import FakeRedis

# A hash within these is kept as one piece, which HSCAN gives whole.
PIECE_FIELDS: Final = 512
PIECE_VALUE_BYTES: Final = 64


# Hashes


def hget(db: FakeRedis, key: bytes, field: bytes) -> Reply:
    found = db.read(key, Hash)
    return found.get(field) if found else None


def hmget(db: FakeRedis, key: bytes, *fields: bytes) -> Reply:
    found = db.read(key, Hash)
    return list(map(found.get, fields)) if found else [None] * len(fields)


def hset(db: FakeRedis, key: bytes, *pairs: bytes) -> Reply:
    if len(pairs) % 2:
        raise ReplyError("ERR wrong number of arguments for 'hset' command")
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
    target = db.read(key, Hash)
    if not target:
        return 0
    count = 0
    for field in fields:
        if target.pop(field, None) is not None:
            count += 1
    if not target:
        db.remove(key)
    return count


def hgetall(db: FakeRedis, key: bytes) -> Reply:
    return [text for pair in (db.read(key, Hash) or {}).items() for text in pair]


def hexists(db: FakeRedis, key: bytes, field: bytes) -> Reply:
    return int(field in (db.read(key, Hash) or ()))


def hlen(db: FakeRedis, key: bytes) -> Reply:
    return len(db.read(key, Hash) or ())


def hscan(db: FakeRedis, key: bytes, cursor: bytes, *options: bytes) -> Reply:
    """Give fields in the order of their CRC: whoever stays through a whole scan is given, as in Redis."""
    if not cursor.isdigit():
        raise ReplyError("ERR invalid cursor")
    target = db.read(key, Hash)
    if target is None:
        return [b"0", []]
    count, pattern = 10, b"*"
    for name, value in zip(options[::2], options[1::2], strict=False):
        match name.upper():
            case b"COUNT":
                count = integer(value)
                if count < 1:
                    raise ReplyError(SYNTAX)
            case b"MATCH":
                pattern = value
            case _:
                raise ReplyError(SYNTAX)
    if len(options) % 2:
        raise ReplyError(SYNTAX)
    after, chosen = 0, list(target)
    if len(target) > count and not _is_piece(target):
        ahead = sorted((zlib.crc32(field), field) for field in target)
        ahead = [pair for pair in ahead if pair[0] >= int(cursor)]
        end = count
        while 0 < end < len(ahead) and ahead[end][0] == ahead[end - 1][0]:
            end += 1
        after = ahead[end][0] if end < len(ahead) else 0
        chosen = [field for _, field in ahead[:end]]
    if pattern != b"*":
        chosen = [field for field in chosen if fnmatch.fnmatchcase(field, pattern)]
    return [b"%d" % after, [text for field in chosen for text in (field, target[field])]]


def _is_piece(target: Hash) -> bool:
    return len(target) <= PIECE_FIELDS and all(
        len(field) <= PIECE_VALUE_BYTES and len(value) <= PIECE_VALUE_BYTES for field, value in target.items()
    )


# Sets


def sadd(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    target = db.write(key, Members)
    before = len(target)
    target.update(dict.fromkeys(members))
    return len(target) - before


def srem(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    target = db.read(key, Members)
    if not target:
        return 0
    before = len(target)
    for member in members:
        target.pop(member, None)
    if not target:
        db.remove(key)
    return before - len(target)


def smembers(db: FakeRedis, key: bytes) -> Reply:
    return list(db.read(key, Members) or ())


COMMANDS: Final[Mapping[bytes, Command]] = {
    b"HGET": (hget, 2, 2),
    b"HMGET": (hmget, 2, inf),
    b"HSET": (hset, 3, inf),
    b"HSETNX": (hsetnx, 3, 3),
    b"HDEL": (hdel, 2, inf),
    b"HGETALL": (hgetall, 1, 1),
    b"HEXISTS": (hexists, 2, 2),
    b"HLEN": (hlen, 1, 1),
    b"HSCAN": (hscan, 2, inf),
    b"SADD": (sadd, 2, inf),
    b"SREM": (srem, 2, inf),
    b"SMEMBERS": (smembers, 1, 1),
}
