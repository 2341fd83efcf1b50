"""Commands on streams; of consumer groups nothing, since no script uses them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final

from tests.simulation.fake.values import (
    MAX_ID,
    NO_ID,
    SYNTAX,
    Command,
    EntryId,
    Reply,
    ReplyError,
    Stream,
    entry_id,
    id_text,
    integer,
)

if TYPE_CHECKING:
    from tests.simulation.fake.server import FakeRedis

NODE_ENTRIES: Final = 100  # Redis' stream-node-max-entries: with ~ only whole nodes go
EDGES: Final = {b"-": NO_ID, b"+": MAX_ID}


def xadd(db: FakeRedis, key: bytes, *words: bytes) -> Reply:
    makes, cap = True, None
    while words and words[0] != b"*":
        match words[0].upper():
            case b"NOMKSTREAM":
                makes, words = False, words[1:]
            case b"MAXLEN":
                cap, words = _cap(words)
            case _:
                break
    if len(words) < 3 or len(words) % 2 == 0:
        raise ReplyError("ERR wrong number of arguments for 'xadd' command")
    wanted = words[0]
    if wanted != b"*":
        _check_form(wanted)
    target = db.read(key, Stream)
    if target is None and not makes:
        return None
    given = _next_id(target, wanted, db.now_ms())
    target = target or db.write(key, Stream)
    target.last = given
    target.added += 1
    target.ids.append(given)
    target.entries.append(words[1:])
    if cap:
        _trim(target, *cap)
    return id_text(given)


def _check_form(wanted: bytes) -> None:
    ms = wanted.removesuffix(b"-*")
    if entry_id(ms, 0 if ms == wanted else 1) == NO_ID:
        raise ReplyError("ERR The ID specified in XADD must be greater than 0-0")


def _next_id(target: Stream | None, wanted: bytes, now_ms: int) -> EntryId:
    last = target.last if target else NO_ID
    if wanted == b"*":
        return (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
    if wanted.endswith(b"-*"):
        ms = entry_id(wanted[:-2], 0)[0]
        given = (ms, last[1] + 1) if ms == last[0] else (ms, 0)
    else:
        given = entry_id(wanted, 0)
    if given <= last:
        raise ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return given


def _cap(words: tuple[bytes, ...]) -> tuple[tuple[int, bool], tuple[bytes, ...]]:
    """Return (entries, roughly) of ``MAXLEN [=|~] entries``, and what follows."""
    words = words[1:]
    roughly = words[:1] == (b"~",)
    if roughly or words[:1] == (b"=",):
        words = words[1:]
    if not words:
        raise ReplyError(SYNTAX)
    entries = integer(words[0])
    if entries < 0:
        raise ReplyError("ERR The MAXLEN argument must be >= 0.")
    return (entries, roughly), words[1:]


def _trim(target: Stream, entries: int, roughly: bool) -> int:
    surplus = max(0, len(target.ids) - entries)
    if roughly:
        surplus -= surplus % NODE_ENTRIES
    if surplus:
        del target.ids[:surplus], target.entries[:surplus]
    return surplus


def xtrim(db: FakeRedis, key: bytes, *words: bytes) -> Reply:
    if words[0].upper() != b"MAXLEN":
        raise ReplyError(SYNTAX)
    cap, rest = _cap(words)
    if rest:
        raise ReplyError(SYNTAX)
    target = db.read(key, Stream)
    return _trim(target, *cap) if target else 0


def xdel(db: FakeRedis, key: bytes, *ids: bytes) -> Reply:
    target = db.read(key, Stream)
    if target is None:
        return 0
    wanted = [entry_id(each, 0) for each in ids]
    count = 0
    for each in wanted:
        place = bisect_left(target.ids, each)
        if place < len(target.ids) and target.ids[place] == each:
            del target.ids[place], target.entries[place]
            target.max_deleted = max(target.max_deleted, each)
            count += 1
    return count


def _start(text: bytes) -> EntryId:
    if text in EDGES:
        return EDGES[text]
    if text[:1] == b"(":
        ms, number = entry_id(text[1:], 0)
        return ms, number + 1
    return entry_id(text, 0)


def _stop(text: bytes) -> EntryId:
    if text in EDGES:
        return EDGES[text]
    if text[:1] == b"(":
        ms, number = entry_id(text[1:], MAX_ID[1])
        return (ms, number - 1) if number else (ms - 1, MAX_ID[1])
    return entry_id(text, MAX_ID[1])


def _count(options: tuple[bytes, ...]) -> int | None:
    if not options:
        return None
    if len(options) != 2 or options[0].upper() != b"COUNT":
        raise ReplyError(SYNTAX)
    return max(0, integer(options[1]))


def _entry(target: Stream, place: int) -> Reply:
    return [id_text(target.ids[place]), list(target.entries[place])]


def xrange(db: FakeRedis, key: bytes, start: bytes, stop: bytes, *options: bytes) -> Reply:
    ends, count = (_start(start), _stop(stop)), _count(options)
    target = db.read(key, Stream)
    return _entries(target, target.slice(*ends), count) if target else []


def _entries(target: Stream, places: range, count: int | None) -> Reply:
    return None if count == 0 else [_entry(target, place) for place in places[:count]]


def xinfo(db: FakeRedis, what: bytes, key: bytes, *more: bytes) -> Reply:
    if what.upper() != b"STREAM":
        raise ReplyError(f"ERR unknown subcommand '{what.decode()}'. Try XINFO HELP.")
    target = db.read(key, Stream)
    if target is None:
        raise ReplyError("ERR no such key")
    if more:
        raise ReplyError(SYNTAX)
    nodes = -(-len(target.ids) // NODE_ENTRIES)  # by number only; Redis counts bytes too
    return [
        *(b"length", len(target.ids), b"radix-tree-keys", nodes, b"radix-tree-nodes", nodes + 1),
        *(b"last-generated-id", id_text(target.last), b"max-deleted-entry-id", id_text(target.max_deleted)),
        *(b"entries-added", target.added),
        *(b"recorded-first-entry-id", id_text(target.ids[0] if target.ids else NO_ID), b"groups", 0),
        *(b"first-entry", _entry(target, 0) if target.ids else None),
        *(b"last-entry", _entry(target, -1) if target.ids else None),
    ]


COMMANDS: Final[Mapping[bytes, Command]] = {
    b"XADD": (xadd, 4, inf),
    b"XTRIM": (xtrim, 3, inf),
    b"XDEL": (xdel, 2, inf),
    b"XRANGE": (xrange, 3, inf),
    b"XINFO": (xinfo, 2, inf),
}
