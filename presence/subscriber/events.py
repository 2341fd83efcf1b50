"""Entries of the streams: as typed events, and as JSON values."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from presence.common.meta_json import from_text
from presence.protocol import Code
from presence.protocol.constants import Status

Meta: TypeAlias = Mapping[str, Any]
NO_META: Final[Meta] = MappingProxyType({})
GapReason = Literal["dropped", "trimmed", "lost_writes"]
# fields that hold numbers, besides those in ``_ms``; the last three are those of rooms
ENTRY_NUMBERS = frozenset({"v", "code", "dropped", "count", "public", "source"})
ZERO_ID = "0-0"
_ENTRY_ID: Final = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OF_USERS_WHO_STAY: Final = {"away", "update", "device", "rooms"}  # online
_CAME: Final = {str(int(code)) for code in (Code.LOGIN, Code.RETURNED)}
MAX_CACHED_NAMES = 64  # field names; each entry has the same dozen


class Entry(NamedTuple):
    """An entry of a shard's stream as it was written."""

    shard: int
    id: str  # such as ``1700000000000-0``
    fields: Mapping[str, str]  # as `redis-cli` shows them
    deliveries: int = 1  # how often this consumer group was given it, this time included; 1 without a group


@dataclass(frozen=True, slots=True)
class _Transition:
    """The common fields of a user's events; times are Unix milliseconds."""

    shard: int  # the user's
    id: str  # the entry id. Of two events of a user, the one with the higher id is the newer
    uid: str
    device: str  # of the session that caused it; ``""`` is the default one
    session: str
    node: str  # the server node that wrote it
    code: int  # why, see the classes
    reason: str  # the code's name
    at_ms: int  # of the decision
    since_ms: int  # beginning of this online period
    last_seen_ms: int  # the session's last valid frame before the event

    @property
    def at(self) -> datetime:
        """`at_ms` as a time in UTC."""
        return utc(self.at_ms)

    @property
    def since(self) -> datetime:
        """`since_ms` as a time in UTC."""
        return utc(self.since_ms)

    @property
    def last_seen(self) -> datetime:
        """`last_seen_ms` as a time in UTC."""
        return utc(self.last_seen_ms)


@dataclass(frozen=True, slots=True)
class Online(_Transition):
    """A user came online: their first session logged in.

    `code` is 1 login, 2 returned (registered anew after a sweep, or after Redis lost data). `status` and
    `meta` are the user's from now on; for `deliveries` see `Entry`.
    """

    deliveries: int = 1
    status: Status = "online"
    meta: Meta = field(default_factory=lambda: NO_META, hash=False)
    private: Meta = field(default_factory=lambda: NO_META, hash=False)  # for the application's backend only
    address: str = ""  # of the client, if the server's setting `event_address` asks for it
    invisible: bool = False  # to clients, who are shown the user as offline
    device_class: str = ""  # what the device is, if its login says so: phone, web
    rooms: tuple[str, ...] = ()  # that the user is in


@dataclass(frozen=True, slots=True)
class Offline(_Transition):
    """A user went offline: their last session ended.

    `code` says why, for example 100 logout, 200 closed, 201 idle_timeout. `grace_ms` is how long the server
    waited for the user's return, if the grace was extended because of frequent reconnects; else 0.
    """

    since_id: str  # the entry id of the online event that this one ends
    deliveries: int = 1
    grace_ms: int = 0
    meta: Meta = field(default_factory=lambda: NO_META, hash=False)  # of the session that ended last
    private: Meta = field(default_factory=lambda: NO_META, hash=False)  # of the same
    address: str = ""  # as of `Online`
    invisible: bool = False  # to clients until now
    device_class: str = ""  # as of `Online`
    rooms: tuple[str, ...] = ()  # that the user was in


@dataclass(frozen=True, slots=True)
class Away(_Transition):
    """A user who stays online went away or came back: all of their sessions are away, or no longer all.

    `code` is 3 away, 4 back; who comes back may be busy or dnd. The session is the one that caused it: by a
    request, by inactivity, or because it began or ended.
    """

    since_id: str  # the entry id of the online event of this online period
    status: Status  # since `at_ms`
    deliveries: int = 1
    meta: Meta = field(default_factory=lambda: NO_META, hash=False)  # the user's from now on
    private: Meta = field(default_factory=lambda: NO_META, hash=False)  # as of `Online`


@dataclass(frozen=True, slots=True)
class Updated(_Transition):
    """A user who is not away has another status, or has other `meta` or `private`; `code` is 5.

    Also one who is away, and has other `meta` or `private`; and one who becomes invisible or visible.
    """

    since_id: str  # as of `Away`
    status: Status
    status_ms: int  # since when the status holds
    deliveries: int = 1
    meta: Meta = field(default_factory=lambda: NO_META, hash=False)
    private: Meta = field(default_factory=lambda: NO_META, hash=False)  # as of `Online`
    invisible: bool = False  # as of `Online`


@dataclass(frozen=True, slots=True)
class Device(_Transition):
    """A device of a user who stays online came or went, if the server's setting `device_events` asks for it.

    `code` is 1 login or 2 returned of one that came, otherwise why its session ended, as of `Offline`.
    """

    since_id: str  # as of `Away`
    status: Status  # the user's
    came: bool  # whether it has a session now
    devices: tuple[str, ...] = ()  # names of those that the user has now
    deliveries: int = 1
    meta: Meta = field(default_factory=lambda: NO_META, hash=False)  # the user's from now on
    private: Meta = field(default_factory=lambda: NO_META, hash=False)  # the user's from now on
    address: str = ""  # as of `Online`
    invisible: bool = False  # as of `Online`
    device_class: str = ""  # as of `Online`


@dataclass(frozen=True, slots=True)
class Moved(_Transition):
    """A user who stays online is in other rooms than before: those of all their sessions; `code` is 8."""

    since_id: str  # as of `Away`
    status: Status  # the user's
    status_ms: int  # since when the status holds
    rooms: tuple[str, ...]  # that the user is in from now on
    left: tuple[str, ...]  # that the user is in no more
    deliveries: int = 1
    invisible: bool = False  # as of `Online`


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing here. A program that keeps a view of who is online should take a new snapshot.

    ``dropped``: the server's queue was full during an outage of Redis; the server wrote this entry, and the
    events after it bring a view up to date. ``trimmed``: the stream's cap removed entries before they were
    read. ``lost_writes``: Redis has lost data. An empty Redis that was refilled before the next read may
    count as trimmed.
    """

    shard: int
    id: str  # of a gap that the server wrote: its entry id; otherwise the id after which events are missing
    reason: GapReason
    dropped: int | None = None  # number of missing events, if known
    from_ms: int | None = None  # Unix ms at which the gap began, if the server wrote it
    to_ms: int | None = None  # at which it ended
    deliveries: int = 1


Event = Online | Offline | Away | Updated | Device | Moved | Gap
Item = Entry | Gap


def utc(unix_ms: int) -> datetime:
    """Return Unix milliseconds as an aware time, exact to the millisecond."""
    return _EPOCH + timedelta(milliseconds=unix_ms)


def decode_transition(item: Item) -> Event | None:
    """Like `decode`, but None for entries of users who stay online."""
    is_other = isinstance(item, Entry) and item.fields.get("type") in _OF_USERS_WHO_STAY
    return None if is_other else decode(item)


def decode(item: Item) -> Event | None:
    """Return the typed event, or None if its type is unknown or a field is missing."""
    if isinstance(item, Gap):
        return item
    try:
        return _event_of(item, item.fields)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def _event_of(entry: Entry, fields: Mapping[str, str]) -> Event | None:
    kind, deliveries = fields["type"], entry.deliveries
    if kind == "gap":
        span = (int(fields["dropped"]), int(fields["from_ms"]), int(fields["to_ms"]))
        return Gap(entry.shard, entry.id, "dropped", *span, deliveries)
    common, said = _common(entry), _said(fields)
    status: Status = fields.get("status", "online")  # type: ignore[assignment]  # or one of a newer server
    is_invisible = "invisible" in fields
    shown = (*said, fields.get("address", ""), is_invisible, fields.get("class", ""))
    rooms = _names(fields.get("rooms", ""))
    if kind == "online":
        return Online(*common, deliveries, status, *shown, rooms)
    if kind != "offline" and kind not in _OF_USERS_WHO_STAY:
        return None
    since_id = fields["since_id"]
    event: Event
    match kind:
        case "offline":
            event = Offline(*common, since_id, deliveries, int(fields.get("grace_ms", 0)), *shown, rooms)
        case "away":
            event = Away(*common, since_id, status, deliveries, *said)
        case "update":
            status_ms = int(fields["status_ms"])
            event = Updated(*common, since_id, status, status_ms, deliveries, *said, is_invisible)
        case "rooms":
            status_ms, left = int(fields["status_ms"]), _names(fields.get("rooms_left", ""))
            event = Moved(*common, since_id, status, status_ms, rooms, left, deliveries, is_invisible)
        case _:
            came = fields["code"] in _CAME
            names = tuple(str(each["device"]) for each in json.loads(fields.get("devices", "[]")))
            event = Device(*common, since_id, status, came, names, deliveries, *shown)
    return event


def _names(text: str) -> tuple[str, ...]:
    """Return the names of rooms in a text, which has a space between two."""
    return tuple(filter(None, text.split(" ")))


def _said(fields: Mapping[str, str]) -> tuple[Meta, Meta]:
    return read_meta(fields.get("meta", "")), read_meta(fields.get("private", ""))


def read_meta(text: str) -> Meta:
    """Return `meta` from its JSON text; damaged text counts as absent."""
    try:
        return from_text(text) if text else NO_META
    except (ValueError, RecursionError):
        return NO_META


def _common(entry: Entry) -> tuple[int, str, str, str, str, str, int, str, int, int, int]:
    fields = entry.fields
    code = int(fields["code"])
    at_ms = int(fields["at_ms"])
    return (
        entry.shard,
        entry.id,
        fields["uid"],
        fields.get("device", ""),
        fields.get("session", ""),
        fields.get("node", ""),
        code,
        fields.get("reason") or _reason(code),
        at_ms,
        int(fields.get("since_ms", at_ms)),
        int(fields.get("last_seen_ms", at_ms)),
    )


def _reason(code: int) -> str:
    return Code(code).reason if code in Code.__members__.values() else ""


def read_entry(shard: int, raw: tuple[bytes, Mapping[bytes, bytes]], deliveries: int = 1) -> Entry:
    """Return an entry from redis-py's answer; bytes that are not UTF-8 are escaped."""
    entry_id, fields = raw
    texts = {_name(key): value.decode("utf-8", "backslashreplace") for key, value in fields.items()}
    return Entry(shard, entry_id.decode(), texts, deliveries)


def id_order(entry_id: str) -> tuple[int, int]:
    """Return the sort key of an entry id."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def check_entry_id(text: str) -> None:
    """Raise `ValueError` unless Redis would take a text as the id of an entry, with or without its number."""
    if not _ENTRY_ID.fullmatch(text) or any(int(part) >= 2**64 for part in text.split("-")):
        raise ValueError(f"an entry id looks like 1700000000000-0, not {text!r}")


@lru_cache(MAX_CACHED_NAMES)
def _name(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


# As ``presence tail --json`` and ``/v1/events`` show them


def gap_entry(gap: Gap) -> Entry:
    """Return a gap found while reading in the form of a gap entry of the server."""
    fields = {"type": "gap", "reason": gap.reason}
    if gap.dropped is not None:
        fields["dropped"] = str(gap.dropped)
    return Entry(gap.shard, gap.id, fields)


def entry_values(entry: Entry) -> dict[str, object]:
    """Return an entry as JSON values: id and shard first, then its fields, numbers as numbers."""
    values: dict[str, object] = {"id": entry.id, "shard": entry.shard}
    for name, text in entry.fields.items():
        is_number = name in ENTRY_NUMBERS or name.endswith("_ms")
        values[name] = parsed_number(text) if is_number else text
    if "invisible" in values:
        values["invisible"] = True
    for name in ("rooms", "rooms_left"):
        if name in values:
            values[name] = list(_names(entry.fields[name]))
    for name in ("meta", "private", "devices"):
        if said := entry.fields.get(name):
            with suppress(ValueError, RecursionError):
                values[name] = json.loads(said)
    return values


def parsed_number(text: str) -> int | str:
    """Return a decimal text as a number; any other, or one of over 19 digits, unchanged."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text
