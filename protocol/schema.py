"""The payload of each kind: a table of keys, and the checks that it names.

Unlisted keys are ignored, so that newer peers can send more. Listed keys
must have the right type; nil is not "absent".

Tests: `tests/protocol/test_vectors.py`, `tests/protocol/test_spec.py`.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgpack

from presence.protocol.constants import (
    CLASS_MAX_BYTES,
    CONFIRM_MAX_S,
    DEVICE_MAX_BYTES,
    META_DEPTH_MAX,
    META_MAX_BYTES,
    META_TEXT_MAX_BYTES,
    NAMES_MAX,
    PASS_MAX_BYTES,
    ROOM_MAX_BYTES,
    ROOMS_MAX,
    TOKEN_MAX_BYTES,
    UID_MAX_BYTES,
    UIDS_MAX,
    WATCHED_ROOMS_MAX,
    Code,
    Kind,
    Scope,
    Status,
)
from presence.protocol.errors import ProtocolError

Complaint = tuple[Code, str]  # the code of the refusal, and what is wrong with a value
Check = Callable[[object], Complaint | None]

# C0, DEL and C1 controls, every Unicode white space, and the braces of Redis hash tags.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\s{}]")
_UINT_MAX: Final = 2**64 - 1


def _wrong(what: str) -> Complaint:
    return Code.PROTOCOL_ERROR, what


def _too_large(what: str) -> Complaint:
    return Code.TOO_LARGE, what


def _name(max_bytes: int) -> Check:
    """Make the check of uids, devices and rooms, which become parts of Redis keys and log lines."""

    def check(value: object) -> Complaint | None:
        if type(value) is not str:
            return _wrong("must be a string")
        if not value:
            return _wrong("must not be empty")
        try:
            if len(value) > max_bytes or len(value.encode()) > max_bytes:
                return _too_large(f"is longer than {max_bytes} bytes")
        except UnicodeEncodeError:  # half of a surrogate pair, as JSON can hold
            return _wrong("must be valid Unicode text")
        if _FORBIDDEN.search(value):
            return _wrong("holds a control character, white space, { or }")
        return None

    return check


_check_uid: Final = _name(UID_MAX_BYTES)
_check_class: Final = _name(CLASS_MAX_BYTES)
_check_room: Final = _name(ROOM_MAX_BYTES)


def _list_of(what: str, check: Check, most: int) -> Check:
    def check_list(value: object) -> Complaint | None:
        if type(value) is not list:
            return _wrong(f"must be a list of {what}")
        if len(value) > most:
            return _too_large(f"holds more than {most} {what}")
        for each in value:
            if complaint := check(each):
                return complaint[0], f"has an element that {complaint[1]}"
        return None

    return check_list


def _token(max_bytes: int) -> Check:
    """Make the check of tokens and passes, which are opaque texts."""

    def check(value: object) -> Complaint | None:
        if type(value) is not str or not value:
            return _wrong("must be a string that is not empty")
        try:
            if len(value) > max_bytes or len(value.encode()) > max_bytes:
                return _too_large(f"is longer than {max_bytes} bytes")
        except UnicodeEncodeError:
            return _wrong("must be valid Unicode text")
        return None

    return check


def _check_meta(value: object) -> Complaint | None:
    if type(value) is not dict:
        return _wrong("must be a map")
    if _is_deeper(value, META_DEPTH_MAX):  # it must fit into answers to other users
        return _wrong(f"is nested more than {META_DEPTH_MAX} deep")
    # Packed again, so that the limit does not depend on the sender's encoding.
    packed_bytes = len(msgpack.packb(value))
    if packed_bytes > META_MAX_BYTES:
        return _too_large(f"takes more than {META_MAX_BYTES} bytes packed")
    # No value takes more than eight times as much as text: the check is only made where it can fail.
    if 8 * packed_bytes > META_TEXT_MAX_BYTES and _text_bytes(value) > META_TEXT_MAX_BYTES:
        return _too_large(f"takes more than {META_TEXT_MAX_BYTES} bytes as text")
    return None


_ESCAPED: Final = re.compile(r'["\\\b\t\n\f\r]')  # two characters in JSON text
_CONTROLS: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # six
_BINARY_BYTES: Final = len('{"$bin":""}')  # beside two hex digits for each byte
_FLOAT_BYTES: Final = 24  # the longest, so that no two languages have to write floats alike


def _text_bytes(value: object) -> int:
    """Return the size of a value in JSON text, as `presence.common.meta_json` writes it."""
    if isinstance(value, str):
        size = len(value.encode("utf-8", "surrogatepass")) + 2
        return size + len(_ESCAPED.findall(value)) + 5 * len(_CONTROLS.findall(value))
    if isinstance(value, dict):
        inner = sum(_text_bytes(str(key)) + 1 + _text_bytes(each) for key, each in value.items())
        quoted = len(value) == 1 and str(next(iter(value))).startswith("$")
        return 2 + inner + max(0, len(value) - 1) + quoted
    if isinstance(value, list | tuple):
        return 2 + sum(map(_text_bytes, value)) + max(0, len(value) - 1)
    if isinstance(value, bytes):
        return _BINARY_BYTES + 2 * len(value)
    return _FLOAT_BYTES if isinstance(value, float) else len("null" if value is None else str(value))


def _is_deeper(value: object, levels: int) -> bool:
    """Whether containers are nested more than `levels` deep, `value` counted as the first."""
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(each, levels - 1) for each in inner)


def _check_string(value: object) -> Complaint | None:
    return None if type(value) is str else _wrong("must be a string")


def _check_bool(value: object) -> Complaint | None:
    return None if type(value) is bool else _wrong("must be a boolean")


def _check_any(value: object) -> Complaint | None:
    return None


def _check_uint(value: object) -> Complaint | None:
    return None if type(value) is int and value >= 0 else _wrong("must be an unsigned integer")


def _check_uints(value: object) -> Complaint | None:
    if type(value) is not list or any(_check_uint(each) for each in value):
        return _wrong("must be a list of unsigned integers")
    return _too_large(f"holds more than {UIDS_MAX} numbers") if len(value) > UIDS_MAX else None


def _check_seconds(value: object) -> Complaint | None:
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]  # a number by then
        return _wrong("must be a number above 0")
    return None


def _check_confirm(value: object) -> Complaint | None:
    if _check_seconds(value) or value > CONFIRM_MAX_S:  # type: ignore[operator]  # a number by then
        return _wrong(f"must be a number above 0, of at most {CONFIRM_MAX_S}")
    return None


def _check_delay(value: object) -> Complaint | None:
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]  # a number by then
        return _wrong("must be a number of at least 0")
    return None


def _one_of(*choices: str) -> Check:
    def check(value: object) -> Complaint | None:
        return (
            None
            if type(value) is str and value in choices
            else _wrong(f"must be one of {', '.join(choices)}")
        )

    return check


def _or_nil(check: Check) -> Check:
    def check_or_nil(value: object) -> Complaint | None:
        return None if value is None else check(value)

    return check_or_nil


class Field(NamedTuple):
    """One key of a payload.

    Attributes:
        type: its type as the specification prints it.
        check: returns what is wrong with a value, or None.
        required: whether it must be present.
        unless: the key whose presence lifts the requirement.
        excludes: keys that must be absent, empty or false beside it.
    """

    type: str
    check: Check
    required: bool = False
    unless: str | None = None
    excludes: tuple[str, ...] = ()


Fields = Mapping[str, Field]

_DEVICE: Final[Fields] = {
    "device": Field("device or empty", _check_string, required=True),
    "status": Field("string", _check_string, required=True),
    "since_ms": Field("uint", _check_uint, required=True),
    "class": Field("class", _check_string),
    "meta": Field("meta", _check_meta),
}


def _check_devices(value: object) -> Complaint | None:
    if type(value) is not list:
        return _wrong("must be a list of devices")
    for each in value:
        if type(each) is not dict:
            return _wrong("has a device that is no map")
        if complaint := _complaint(each, _DEVICE):
            return complaint[0], f"has a device whose {complaint[1]}"
    return None


_SHOWN: Final[Fields] = {
    # Any string: a status added by a later server must not end an older client's connection.
    "status": Field("string", _check_string, required=True),
    "since_ms": Field("uint or nil", _or_nil(_check_uint)),
    "last_seen_ms": Field("uint or nil", _or_nil(_check_uint)),
    "id": Field("string or nil", _or_nil(_check_string)),
    "meta": Field("meta", _check_meta),
    "reason": Field("string", _check_string),
}
_STATE: Final[Fields] = {**_SHOWN, "devices": Field("list of devices", _check_devices)}


def _check_states(value: object) -> Complaint | None:
    if type(value) is not dict:
        return _wrong("must be a map of uids to states")
    if len(value) > UIDS_MAX:
        return _too_large(f"holds more than {UIDS_MAX} states")
    for uid, state in value.items():
        if complaint := _check_uid(uid):
            return complaint[0], f"has a uid that {complaint[1]}"
        if type(state) is not dict:
            return _wrong("has a state that is no map")
        if complaint := _complaint(state, _STATE):
            return complaint[0], f"has a state whose {complaint[1]}"
    return None


def _check_code(value: object) -> Complaint | None:
    if type(value) is str or (type(value) is int and value >= 0):
        return None
    return _wrong("must be an unsigned integer or a string")


def _check_int(value: object) -> Complaint | None:
    return None if type(value) is int else _wrong("must be an integer")


_ROW: Final[Sequence[tuple[str, Check]]] = (
    ("uid", _check_uid),
    ("status", _or_nil(_check_string)),
    ("code", _or_nil(_check_code)),
    ("ms", _or_nil(_check_uint)),
    ("n", _or_nil(_check_uint)),
    ("since", _or_nil(_check_int)),
    ("seen", _or_nil(_check_int)),
    ("meta", _or_nil(_check_meta)),
    ("devices", _or_nil(_check_devices)),
)


def _row_complaint(row: object, *, has_code: bool) -> Complaint | None:
    if type(row) is str:
        row = [row]
    if type(row) is not list or not row:
        return _wrong("has a row that is neither a uid nor an array with one")
    for (name, check), value in zip(_ROW, row, strict=False):
        if complaint := check(value):
            return complaint[0], f"has a row whose {name} {complaint[1]}"
    code, ms, n, since, seen = [*row, *(None,) * len(_ROW)][2:7]
    if has_code and code is None:
        return _wrong("has a row without a code")
    if (ms is None) != (n is None):
        return _wrong("has a row with half of an id")
    since_ms = 0 if since is None else (ms or 0) + since
    if not (0 <= since_ms <= _UINT_MAX and 0 <= since_ms - (seen or 0) <= _UINT_MAX):
        return _wrong("has a row with a time that is no unsigned integer")
    return None


def _rows(what: str, *, has_code: bool) -> Check:
    def check(value: object) -> Complaint | None:
        if type(value) is not list:
            return _wrong(f"must be a list of {what}")
        if len(value) > UIDS_MAX:
            return _too_large(f"holds more than {UIDS_MAX} rows")
        for row in value:
            if complaint := _row_complaint(row, has_code=has_code):
                return complaint
        return None

    return check


_check_uids: Final = _list_of("uids", _check_uid, UIDS_MAX)
_ROOM_ROW: Final[Sequence[tuple[str, Check]]] = (
    ("room", _check_room),
    ("count", _or_nil(_check_uint)),
    ("members", _check_uids),
    ("left", _check_uids),
)


def _check_room_row(row: object) -> Complaint | None:
    if type(row) is not list or len(row) < 2:
        return _wrong("is no array with a room and a count")
    for (name, check), value in zip(_ROOM_ROW, row, strict=False):
        if complaint := check(value):
            return complaint[0], f"has a {name} that {complaint[1]}"
    return None


_UID: Final = Field("uid", _check_uid, required=True)
_UIDS: Final = Field("list of uids", _check_uids, required=True)
_ROOMS: Final = Field("list of rooms", _list_of("rooms", _check_room, ROOMS_MAX))
_WATCHED_ROOMS: Final = Field(
    "list of up to 64 rooms",
    _list_of("rooms", _check_room, WATCHED_ROOMS_MAX),
    excludes=("uids", "detail", "pass", "roster"),
)
_ROOM_ROWS: Final = Field("list of room rows", _list_of("room rows", _check_room_row, WATCHED_ROOMS_MAX))
_META: Final = Field("meta", _check_meta)
_SCOPE: Final = Field("`session` or `user`", _one_of(*get_args(Scope)))
_HIDE: Final = Field("list of names", _list_of("names", _check_class, NAMES_MAX))
_TOKEN: Final = Field("token", _token(TOKEN_MAX_BYTES))
_STATUS: Final = Field("`online`, `away`, `busy`, `dnd` or `invisible`", _one_of(*get_args(Status)))
_UINT: Final = Field("uint", _check_uint)
_STRING: Final = Field("string", _check_string, required=True)
_SECONDS: Final = Field("number > 0, seconds", _check_seconds)
_RETRY_AFTER: Final = Field("number >= 0, seconds", _check_delay)
_BODY: Final = Field("any", _check_any, required=True)

SCHEMA: Final[Mapping[int, Fields]] = {
    Kind.LOGIN: {
        "uid": _UID._replace(unless="token"),
        "device": Field("device", _name(DEVICE_MAX_BYTES)),
        "class": Field("class", _check_class),
        "token": _TOKEN,
        "idle_timeout": _SECONDS,
        "meta": _META,
        "private": _META,
        "status": _STATUS,
        "until_ms": _UINT,
        "scope": _SCOPE,
        "hide": _HIDE,
        "quiet": Field("boolean", _check_bool),
        "v": _UINT,
        "confirms": Field("boolean", _check_bool),
        "batch": Field("boolean", _check_bool),
        "rooms": _ROOMS,
    },
    Kind.MESSAGE: {
        "to": _UID,
        "body": _BODY,
        "confirm": Field("number > 0 and at most 30, seconds", _check_confirm),
    },
    Kind.KEEPALIVE: {"confirmed": Field("list of uints", _check_uints)},
    Kind.LOGOUT: {"reason": Field("`logout` or `background`", _one_of("logout", "background"))},
    Kind.QUERY: {"uids": _UIDS, "detail": Field("boolean", _check_bool), "rooms": _WATCHED_ROOMS},
    Kind.WATCH: {
        "uids": _UIDS,
        "detail": Field("boolean", _check_bool),
        "pass": Field("pass", _token(PASS_MAX_BYTES)),
        "roster": Field("boolean", _check_bool),
        "rooms": _WATCHED_ROOMS,
    },
    Kind.UNWATCH: {
        "uids": _UIDS._replace(required=False),
        "roster": Field("boolean", _check_bool),
        "rooms": _WATCHED_ROOMS,
    },
    Kind.UPDATE: {
        "meta": _META,
        "private": _META,
        "token": _TOKEN,
        "status": _STATUS,
        "until_ms": _UINT,
        "scope": _SCOPE,
        "hide": _HIDE,
        "idle_timeout": _SECONDS,
        "quiet": Field("boolean", _check_bool),
        "rooms": _ROOMS,
        "join": _ROOMS,
        "leave": _ROOMS,
    },
    Kind.OK: {
        "session": _STRING._replace(required=False),
        "idle_timeout": _SECONDS,
        "keepalive": _SECONDS,
        "time_ms": _UINT,
        "v": _UINT,
        "delivered": _UINT,
        "confirmed": _UINT,
        "by_app": _UINT,
        "unconfirmed": _UINT,
        "scope": _STRING._replace(required=False),
        "hide": _HIDE,
        "presence": Field("map of uids to states", _check_states),
        "states": Field("list of rows", _rows("rows", has_code=False)),
        "roster": _UINT,
        "joined": _ROOMS,
        "rooms": _ROOM_ROWS,
        "later": _WATCHED_ROOMS,
    },
    Kind.ERROR: {
        "code": _UINT._replace(required=True),
        "reason": _STRING,
        "message": _STRING,
        "retry_after": _RETRY_AFTER,
    },
    Kind.PRESENCE: {"uid": _UID, **_STATE, "reason": _STRING},
    Kind.DELIVER: {
        "from": _UID,
        "body": _BODY,
        "at_ms": _UINT._replace(required=True),
        "confirm": _UINT,
    },
    Kind.GOODBYE: {
        "code": _UINT._replace(required=True),
        "reason": _STRING,
        "reconnect": Field("boolean", _check_bool, required=True),
        "retry_after": _RETRY_AFTER,
        "message": _STRING._replace(required=False),
    },
    Kind.CHANGES: {"changes": Field("list of changes", _rows("changes", has_code=True), required=True)},
    Kind.ROOMS: {"rooms": _ROOM_ROWS._replace(required=True)},
}


def uid_complaint(value: object) -> str | None:
    """Return what keeps a value from being a uid, as "is longer than 128 bytes"; None if it is one.

    This is the only rule for uids: what may log in can be named everywhere else.
    """
    complaint = _check_uid(value)
    return complaint and complaint[1]


def device_complaint(value: object) -> str | None:
    """Return what keeps a value from being the name of a device; None if it is one. "" is none."""
    complaint = SCHEMA[Kind.LOGIN]["device"].check(value)
    return complaint and complaint[1]


def class_complaint(value: object) -> str | None:
    """Return what keeps a value from being the class of a device; None if it is one."""
    complaint = SCHEMA[Kind.LOGIN]["class"].check(value)
    return complaint and complaint[1]


def room_complaint(value: object) -> str | None:
    """Return what keeps a value from being the name of a room; None if it is one."""
    complaint = _check_room(value)
    return complaint and complaint[1]


def confirm_complaint(value: object) -> str | None:
    """Return what keeps a value from being the seconds to wait for confirmations; None if it is such."""
    complaint = _check_confirm(value)
    return complaint and complaint[1]


def check_payload(kind: int, payload: Mapping[str, Any]) -> None:
    """Check a payload against the table; unknown kinds may hold anything.

    Raises:
        ProtocolError: a key is missing, of the wrong type, or over a limit (then ``TOO_LARGE``).
    """
    fields = SCHEMA.get(kind)
    if fields and (complaint := _complaint(payload, fields)):
        code, what = complaint
        raise ProtocolError(code, f"{Kind(kind).name.lower()}: {what}")


def _complaint(payload: Mapping[str, Any], fields: Fields) -> Complaint | None:
    for name, field in fields.items():
        if name in payload:
            if complaint := field.check(payload[name]):
                return complaint[0], f"{name} {complaint[1]}"
            if beside := [each for each in field.excludes if payload.get(each)]:
                return _wrong(f"{beside[0]} beside {name}")
        elif field.required and field.unless not in payload:
            return _wrong(f"{name} is missing")
    return None
