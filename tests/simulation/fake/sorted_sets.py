"""Commands on sorted sets."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.values import (
    SYNTAX,
    Command,
    Reply,
    ReplyError,
    Sorted,
    bound,
    integer,
    number_text,
    real,
)

if TYPE_CHECKING:
    from tests.simulation.fake.server import FakeRedis
FLAGS: Final = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH"})


def zadd(db: FakeRedis, key: bytes, *words: bytes) -> Reply:
    flags = set()
    while words and words[0].upper() in FLAGS:
        flags.add(words[0].upper())
        words = words[1:]
    if not words or len(words) % 2:
        raise ReplyError(SYNTAX)
    if b"NX" in flags and b"XX" in flags:
        raise ReplyError("ERR XX and NX options at the same time are not compatible")
    if len(flags & {b"NX", b"GT", b"LT"}) > 1:
        raise ReplyError("ERR GT, LT, and/or NX options at the same time are not compatible")
    pairs = list(zip(map(real, words[::2]), words[1::2], strict=True))
    target = db.read(key, Sorted) if b"XX" in flags else db.write(key, Sorted)
    if target is None:
        return 0
    if not flags:
        before = len(target)
        for score, member in pairs:
            target.put(member, score)
        return len(target) - before
    added = changed = 0
    for score, member in pairs:
        old = target.scores.get(member)
        if old is None:
            if b"XX" not in flags:
                target.put(member, score)
                added += 1
        elif not (
            old == score
            or b"NX" in flags
            or (b"GT" in flags and score < old)
            or (b"LT" in flags and score > old)
        ):
            target.put(member, score)
            changed += 1
    return added + changed if b"CH" in flags else added


def zrem(db: FakeRedis, key: bytes, *members: bytes) -> Reply:
    target = db.read(key, Sorted)
    if target is None:
        return 0
    count = sum(map(target.remove, members))
    if not target:
        db.remove(key)
    return count


def zscore(db: FakeRedis, key: bytes, member: bytes) -> Reply:
    target = db.read(key, Sorted)
    score = target.scores.get(member) if target else None
    return None if score is None else number_text(score)


def zrangebyscore(db: FakeRedis, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
    ends = bound(low), bound(high)
    with_scores, offset, count = _range_options(options)
    target = db.read(key, Sorted)
    if target is None or offset < 0:
        return []
    found = target.between(*ends)[offset:]
    return _pairs(found if count < 0 else found[:count], with_scores)


def zremrangebyscore(db: FakeRedis, key: bytes, low: bytes, high: bytes) -> Reply:
    ends = bound(low), bound(high)
    target = db.read(key, Sorted)
    return zrem(db, key, *(member for _, member in target.between(*ends))) if target else 0


def zrange(db: FakeRedis, key: bytes, start: bytes, stop: bytes, *options: bytes) -> Reply:
    if options and options[0].upper() == b"BYSCORE":
        return zrangebyscore(db, key, start, stop, *options[1:])
    first, last = integer(start), integer(stop)
    with_scores, offset, count = _range_options(options)
    if (offset, count) != (0, -1):
        raise ReplyError(SYNTAX + ", LIMIT is only supported in combination with either BYSCORE or BYLEX")
    target = db.read(key, Sorted)
    if target is None:
        return []
    size = len(target)
    first = max(0, first + size if first < 0 else first)
    last = last + size if last < 0 else last
    return _pairs(target.order[first : last + 1] if last >= first else [], with_scores)


def _range_options(options: tuple[bytes, ...]) -> tuple[bool, int, int]:
    """Return whether scores are wanted, the offset and the count; a count below 0: all."""
    with_scores, offset, count = False, 0, -1
    if len(options) == 3 and options[0] == b"LIMIT":
        return False, integer(options[1]), integer(options[2])
    while options:
        match options[0].upper():
            case b"WITHSCORES":
                with_scores, options = True, options[1:]
            case b"LIMIT" if len(options) >= 3:
                offset, count, options = integer(options[1]), integer(options[2]), options[3:]
            case _:
                raise ReplyError(SYNTAX)
    return with_scores, offset, count


def _pairs(found: list[tuple[float, bytes]], with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in found]
    return [text for score, member in found for text in (member, number_text(score))]


COMMANDS: Final[Mapping[bytes, Command]] = {
    b"ZADD": (zadd, 3, inf),
    b"ZREM": (zrem, 2, inf),
    b"ZSCORE": (zscore, 2, 2),
    b"ZRANGEBYSCORE": (zrangebyscore, 3, inf),
    b"ZREMRANGEBYSCORE": (zremrangebyscore, 3, 3),
    b"ZRANGE": (zrange, 3, inf),
}
