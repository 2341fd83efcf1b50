"""Commands on keys of any type, on strings, and on the server itself."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.values import (
    MAX_INTEGER,
    OK,
    SYNTAX,
    TYPE_NAMES,
    Command,
    Reply,
    ReplyError,
    Status,
    Text,
    integer,
)

if TYPE_CHECKING:
    from tests.simulation.fake.server import FakeRedis


def get(db: FakeRedis, key: bytes) -> Reply:
    found = db.read(key, Text)
    return None if found is None else bytes(found)


def set_(db: FakeRedis, key: bytes, value: bytes, *options: bytes) -> Reply:
    words = [word.upper() for word in options]
    until_ms: int | None = None
    flags = set()
    while words:
        word = words.pop(0)
        if word in {b"EX", b"PX"} and words and until_ms is None:
            until_ms = _deadline(db, integer(words.pop(0)), 1000 if word == b"EX" else 1, "set")
        elif word in {b"NX", b"XX", b"KEEPTTL"}:
            flags.add(word)
        else:
            raise ReplyError(SYNTAX)
    if {b"NX", b"XX"} <= flags or (b"KEEPTTL" in flags and until_ms is not None):
        raise ReplyError(SYNTAX)
    if (b"NX" in flags and key in db.data) or (b"XX" in flags and key not in db.data):
        return None
    db.data[key] = Text(value)
    if until_ms is not None:
        db.set_deadline(key, until_ms)
    elif b"KEEPTTL" not in flags:
        db.deadlines.pop(key, None)
    return OK


def setrange(db: FakeRedis, key: bytes, offset: bytes, value: bytes) -> Reply:
    start = integer(offset)
    if start < 0:
        raise ReplyError("ERR offset is out of range")
    found = db.read(key, Text)
    before = bytes(found or b"")
    if not value:
        return len(before)
    padded = before.ljust(start, b"\0")
    after = Text(padded[:start] + value + padded[start + len(value) :])
    db.data[key] = after
    return len(after)


def _deadline(db: FakeRedis, span: int, unit_ms: int, command: str, *, least: int = 1) -> int:
    until_ms = db.now_ms() + span * unit_ms
    if span < least or not -MAX_INTEGER < until_ms <= MAX_INTEGER:
        raise ReplyError(f"ERR invalid expire time in '{command}' command")
    return until_ms


def delete(db: FakeRedis, *keys: bytes) -> Reply:
    return sum(map(db.remove, keys))


def exists(db: FakeRedis, *keys: bytes) -> Reply:
    return sum(key in db.data for key in keys)


def type_(db: FakeRedis, key: bytes) -> Reply:
    return TYPE_NAMES[type(db.data[key])] if key in db.data else Status(b"none")


def keys_(db: FakeRedis, pattern: bytes) -> Reply:
    return [key for key in db.data if fnmatch.fnmatchcase(key, pattern)]


def _expire(db: FakeRedis, key: bytes, until_ms: int) -> Reply:
    if key not in db.data:
        return 0
    if until_ms <= db.now_ms():
        db.remove(key)
    else:
        db.set_deadline(key, until_ms)
    return 1


def pexpire(db: FakeRedis, key: bytes, ms: bytes) -> Reply:
    return _expire(db, key, _deadline(db, integer(ms), 1, "pexpire", least=-MAX_INTEGER))


def pexpiretime(db: FakeRedis, key: bytes) -> Reply:
    return db.deadlines.get(key, -1) if key in db.data else -2


def ping(_db: FakeRedis) -> Reply:
    return Status(b"PONG")


def time(db: FakeRedis) -> Reply:
    return [b"%d" % part for part in divmod(db.now_us(), 1_000_000)]


def info(db: FakeRedis, *sections: bytes) -> Reply:
    return _info(db.replication_id, sections)


@lru_cache(maxsize=1000)
def _info(replication_id: str, sections: tuple[bytes, ...]) -> bytes:
    texts = {
        b"replication": b"# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_replid:%s\r\n"
        % replication_id.encode(),
        b"cluster": b"# Cluster\r\ncluster_enabled:0\r\n",
    }
    return b"\r\n".join(texts.get(section.lower(), b"") for section in sections or texts)


def publish(db: FakeRedis, channel: bytes, message: bytes) -> Reply:
    return db.publish(channel, message)


def pubsub(db: FakeRedis, what: bytes, *channels: bytes) -> Reply:
    match what.upper():
        case b"NUMSUB":
            return [part for each in channels for part in (each, db.listeners(each))]
        case b"NUMPAT" if not channels:
            return 0
    raise ReplyError(f"ERR unknown subcommand '{what.decode()}'. Try PUBSUB HELP.")


def script(db: FakeRedis, what: bytes, *words: bytes) -> Reply:
    match what.upper(), words:
        case b"LOAD", (text,):
            return db.load(text)
        case b"EXISTS", digests:
            return [int(digest in db.scripts) for digest in digests]
        case b"FLUSH", _:
            db.scripts.clear()
            return OK
    raise ReplyError(f"ERR unknown subcommand '{what.decode()}'. Try SCRIPT HELP.")


def evalsha(db: FakeRedis, digest: bytes, count: bytes, *words: bytes) -> Reply:
    digest = digest.lower()
    if digest not in db.scripts:
        raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
    return db.run_script(digest, *_parted(count, words))


def eval_(db: FakeRedis, text: bytes, count: bytes, *words: bytes) -> Reply:
    return db.run_script(db.load(text), *_parted(count, words))


def _parted(count: bytes, words: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    n = integer(count)
    if n < 0:
        raise ReplyError("ERR Number of keys can't be negative")
    if n > len(words):
        raise ReplyError("ERR Number of keys can't be greater than number of args")
    return words[:n], words[n:]


COMMANDS: Final[Mapping[bytes, Command]] = {
    b"GET": (get, 1, 1),
    b"SETRANGE": (setrange, 3, 3),
    b"SET": (set_, 2, inf),
    b"DEL": (delete, 1, inf),
    b"EXISTS": (exists, 1, inf),
    b"TYPE": (type_, 1, 1),
    b"KEYS": (keys_, 1, 1),
    b"PEXPIRE": (pexpire, 2, 2),
    b"PEXPIRETIME": (pexpiretime, 1, 1),
    b"PING": (ping, 0, 0),
    b"TIME": (time, 0, 0),
    b"INFO": (info, 0, inf),
    b"PUBLISH": (publish, 2, 2),
    b"PUBSUB": (pubsub, 1, inf),
    b"SCRIPT": (script, 1, inf),
    b"EVAL": (eval_, 2, inf),
    b"EVALSHA": (evalsha, 2, inf),
}
NOT_IN_SCRIPTS: Final = frozenset({script, eval_, evalsha})
