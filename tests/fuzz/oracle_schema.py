"""The rules for payloads, written from `protocol/SPEC.md` alone; see `tests.fuzz.oracle`.

A rule here names all errors of a value, while the first checker stops at the first one.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

MALFORMED: Final = 310
TOO_LARGE: Final = 315
UIDS_MAX: Final = 500
CONFIRM_MAX_S: Final = 30
NAMES_MAX: Final = 8
ROOMS_MAX: Final = 16
WATCHED_ROOMS_MAX: Final = 64
META_MAX_BYTES: Final = 256
META_TEXT_MAX_BYTES: Final = 512
META_NESTED_MAX: Final = 8

Rule = Callable[[Any], Iterator[int]]

# The Unicode property White_Space, from PropList.txt.
_WHITE: Final = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029}
_FORBIDDEN: Final = frozenset(
    map(
        chr,
        {*_WHITE, 0x202F, 0x205F, 0x3000, *range(0x20), *range(0x7F, 0xA0), ord("{"), ord("}")},
    )
)
# The ranges of MessagePack's shortest encodings of integers: bytes, least, most.
_INTEGERS: Final = (
    (1, -32, 127),
    (2, -(2**7), 2**8 - 1),
    (3, -(2**15), 2**16 - 1),
    (5, -(2**31), 2**32 - 1),
    (9, -(2**63), 2**64 - 1),
)


def _only(*types: type, at_least: float = -math.inf, above: float = -math.inf) -> Rule:
    def rule(value: Any) -> Iterator[int]:
        if type(value) not in types or (types != (str,) and not (value >= at_least and value > above)):
            yield MALFORMED

    return rule


_text: Final = _only(str)
_bool: Final = _only(bool)
_uint: Final = _only(int, at_least=0)
_positive: Final = _only(int, float, above=0)
_at_least_0: Final = _only(int, float, at_least=0)


def _wait(value: Any) -> Iterator[int]:
    yield from _positive(value)
    if type(value) in {int, float} and value > CONFIRM_MAX_S:
        yield MALFORMED


def _any(value: Any) -> Iterator[int]:
    yield from ()


def _word(*choices: str) -> Rule:
    def rule(value: Any) -> Iterator[int]:
        if type(value) is not str or value not in choices:
            yield MALFORMED

    return rule


def _or_nil(rule: Rule) -> Rule:
    def relaxed(value: Any) -> Iterator[int]:
        if value is not None:
            yield from rule(value)

    return relaxed


def _name(max_bytes: int, forbidden: frozenset[str] = _FORBIDDEN) -> Rule:
    def rule(value: Any) -> Iterator[int]:
        if type(value) is not str or not value:
            yield MALFORMED
            return
        if len(value.encode()) > max_bytes:
            yield TOO_LARGE
        if not forbidden.isdisjoint(value):
            yield MALFORMED

    return rule


_uid: Final = _name(128)
_device: Final = _name(64)
_class: Final = _name(32)
_token: Final = _name(768, frozenset())
_pass: Final = _name(4096, frozenset())


def _list_of(rule: Rule, at_most: int) -> Rule:
    def rules(value: Any) -> Iterator[int]:
        if type(value) is not list:
            yield MALFORMED
            return
        if len(value) > at_most:
            yield TOO_LARGE
        for each in value:
            yield from rule(each)

    return rules


_uids: Final = _list_of(_uid, UIDS_MAX)
_names: Final = _list_of(_class, NAMES_MAX)
_room: Final = _name(64)
_rooms: Final = _list_of(_room, ROOMS_MAX)
_numbers: Final = _list_of(_uint, UIDS_MAX)


def _meta(value: Any) -> Iterator[int]:
    if type(value) is not dict:
        yield MALFORMED
        return
    if _nesting(value) > META_NESTED_MAX:
        yield MALFORMED
    if _size(value) > META_MAX_BYTES or len(_json_text(value).encode()) > META_TEXT_MAX_BYTES:
        yield TOO_LARGE


_COMPACT: Final[dict[str, Any]] = {"separators": (",", ":"), "ensure_ascii": False}


def _json_text(value: Any) -> str:
    return json.dumps(_written(value), **_COMPACT).replace("\x7f", "\\u007f")


def _written(value: Any) -> Any:
    """Return what JSON text has for a value; a float counts as the longest."""
    if type(value) is float:
        return 10**23
    if type(value) is bytes:
        return {"$bin": value.hex()}
    if type(value) is list:
        return [_written(each) for each in value]
    if type(value) is dict:
        quote = "$" if len(value) == 1 and next(iter(value)).startswith("$") else ""
        return {quote + name: _written(each) for name, each in value.items()}
    return value


def _nesting(value: Any) -> int:
    """Return the number of nested containers, including this one."""
    if type(value) is dict:
        return 1 + max(map(_nesting, value.values()), default=0)
    return 1 + max(map(_nesting, value), default=0) if type(value) is list else 0


def _size(value: Any) -> int:
    """Return the size of MessagePack's shortest encoding, with floats as float64."""
    if value is None or type(value) is bool:
        return 1
    if type(value) is int:
        return next(size for size, least, most in _INTEGERS if least <= value <= most)
    if type(value) is float:
        return 9
    if type(value) is str:
        length = len(value.encode())
        return length + (1 if length < 32 else 2 if length < 2**8 else 3 if length < 2**16 else 5)
    if type(value) is bytes:
        return len(value) + (2 if len(value) < 2**8 else 3 if len(value) < 2**16 else 5)
    parts = [*value, *value.values()] if type(value) is dict else value
    head = 1 if len(value) < 16 else 3 if len(value) < 2**16 else 5
    return head + sum(map(_size, parts))


def _states(value: Any) -> Iterator[int]:
    if type(value) is not dict:
        yield MALFORMED
        return
    if len(value) > UIDS_MAX:
        yield TOO_LARGE
    for uid, state in value.items():
        yield from _uid(uid)
        if type(state) is dict:
            yield from _keys(state, *_STATE)
        else:
            yield MALFORMED


def _devices(value: Any) -> Iterator[int]:
    if type(value) is not list:
        yield MALFORMED
        return
    for each in value:
        if type(each) is dict:
            yield from _keys(each, *_DEVICE)
        else:
            yield MALFORMED


def _code(value: Any) -> Iterator[int]:
    if type(value) is not str:
        yield from _uint(value)


def _row(value: Any) -> Iterator[int]:
    row = [value] if type(value) is str else value
    if type(row) is not list or not row:
        yield MALFORMED
        return
    found = {name: each for name, each in zip(_ROW, row, strict=False) if each is not None}
    yield from _keys(found, {name: _RULES[rule] for name, rule in _ROW.items()}, {"uid"})
    numbers = [found.get(name, 0) for name in ("ms", "since", "seen")]
    if ("ms" in found) != ("n" in found):
        yield MALFORMED
    if all(type(each) is int for each in numbers):
        ms, since, seen = numbers
        times = [ms + since] if "since" in found else [0]
        if "seen" in found:
            times.append(times[0] - seen)
        if not all(each in range(2**64) for each in times):
            yield MALFORMED


def _change(value: Any) -> Iterator[int]:
    yield from _row(value)
    if type(value) is str or (type(value) is list and (len(value) < 3 or value[2] is None)):
        yield MALFORMED


def _room_row(value: Any) -> Iterator[int]:
    if type(value) is not list or len(value) < 2:
        yield MALFORMED
        return
    for rule, each in zip((_room, _or_nil(_uint), _uids, _uids), value, strict=False):
        yield from rule(each)


_ROW: Final = {
    "uid": "uid",
    "status": "shown",
    "code": "number_or_name",
    "ms": "time_ms",
    "n": "count",
    "since": "int",
    "seen": "int",
    "meta": "meta",
    "devices": "devices",
}
_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("uid", "to", "from"), _uid),
    **dict.fromkeys(("session", "reason", "message", "shown", "words"), _text),
    **dict.fromkeys(("v", "time_ms", "until_ms", "delivered", "code", "at_ms", "begun", "count"), _uint),
    **dict.fromkeys(("idle_timeout", "keepalive"), _positive),
    **dict.fromkeys(("since_ms", "last_seen_ms"), _or_nil(_uint)),
    "body": _any,
    "device": _device,
    "class": _class,
    **dict.fromkeys(("detail", "quiet", "confirms", "roster", "batch"), _bool),
    "changes": _list_of(_change, UIDS_MAX),
    "confirm": _wait,
    "confirmed": _numbers,
    "devices": _devices,
    "hide": _names,
    "id": _or_nil(_text),
    "int": _only(int),
    "meta": _meta,
    "private": _meta,
    "number_or_name": _code,
    "presence": _states,
    **dict.fromkeys(("rooms", "join", "leave", "joined"), _rooms),
    "reconnect": _bool,
    "retry_after": _at_least_0,
    "room_rows": _list_of(_room_row, WATCHED_ROOMS_MAX),
    "scope": _word("session", "user"),
    "states": _list_of(_row, UIDS_MAX),
    "status": _word("online", "away", "busy", "dnd", "invisible"),
    "token": _token,
    "pass": _pass,
    "uids": _uids,
    "watched": _list_of(_room, WATCHED_ROOMS_MAX),
    "why": _word("logout", "background"),
}


def _payload(table: str) -> tuple[dict[str, Rule], set[str]]:
    """Return a payload's rules by key, and the required keys: those with a `!`."""
    rules, required = {}, set()
    for word in table.split():
        key, _, rule = word.rstrip("!").partition("=")
        rules[key] = _RULES[rule or key]
        if word.endswith("!"):
            required.add(key)
    return rules, required


_STATE: Final = _payload("status=shown! since_ms last_seen_ms id meta reason devices")
_DEVICE: Final = _payload("device=words! status=shown! since_ms=begun! class=words meta")
_PAYLOADS: Final = {
    1: _payload(
        "uid! device class token idle_timeout meta private status until_ms scope hide quiet v confirms batch"
        " rooms"
    ),
    2: _payload("to! body! confirm"),
    3: _payload("confirmed"),
    4: _payload("reason=why"),
    5: _payload("uids! detail rooms=watched"),
    6: _payload("uids! detail pass roster rooms=watched"),
    7: _payload("uids roster rooms=watched"),
    8: _payload("meta private token status until_ms scope hide idle_timeout quiet rooms join leave"),
    64: _payload(
        "session idle_timeout keepalive time_ms v delivered confirmed=count by_app=count unconfirmed=count"
        " scope=words hide presence states roster=count joined rooms=room_rows later=watched"
    ),
    65: _payload("code! reason! message! retry_after"),
    66: _payload("uid! reason! status=shown! since_ms last_seen_ms id meta devices"),
    67: _payload("from! body! at_ms! confirm=count"),
    68: _payload("code! reason! reconnect! retry_after message"),
    69: _payload("changes!"),
    70: _payload("rooms=room_rows!"),
}


def complaints(kind: int, payload: dict[str, Any]) -> frozenset[int]:
    """Return the codes of all errors of a payload; none for an unknown kind."""
    rules, required = _PAYLOADS.get(kind, ({}, set()))
    if kind == 1 and "token" in payload:
        required = set()
    of_users = kind in {5, 6, 7} and any(map(payload.get, ("uids", "detail", "pass", "roster")))
    if of_users and "rooms" in payload:
        return frozenset({MALFORMED, *_keys(payload, rules, required)})
    return frozenset(_keys(payload, rules, required))


def _keys(payload: dict[str, Any], rules: dict[str, Rule], required: set[str]) -> Iterator[int]:
    if not required <= payload.keys():
        yield MALFORMED
    for key, rule in rules.items():
        if key in payload:
            yield from rule(payload[key])
