"""The state of a user as others see it, and its sources: stream entries and records. Pure.

Entry ids are compared as pairs of numbers; of two entries of a user the one with the higher id is newer.
"""

import json
from collections.abc import Mapping
from sys import getsizeof
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from presence.common import meta_json
from presence.protocol import Code, Row
from presence.protocol.rows import make_row

EntryId: TypeAlias = tuple[int, int]

NO_ENTRY: Final[EntryId] = (0, 0)
# Most bytes of the `meta` of a user's devices together, as JSON text; if there are more, clients see none of
# them. The entries for device events are bounded so (see lib/shown_state.lua); an answer must show the same.
DEVICES_META_MAX_BYTES: Final = 2048
REASON_CHARS: Final = 64  # far more than any code has
STATE_BYTES: Final = 280  # memory of a state beside its texts and devices: tuples and numbers
DEVICE_BYTES: Final = 150  # memory of a device in it, the same
_PUBLIC_ID: Final = "*"  # in the entry with which a user becomes invisible: its own id
ONLINE, AWAY, OFFLINE, UNKNOWN, HIDDEN = "online", "away", "offline", "unknown", "not_allowed"
REMOVED: Final = "removed"  # from the roster that a session follows
# What an operator does to a user is no business of others; the application's backend gets these reasons.
_PRIVATE_REASONS: Final = frozenset({Code.KICKED.reason, Code.BANNED.reason})
_SHOWN_AS_LOGOUT: Final = _PRIVATE_REASONS | {Code.LOGOUT.reason}
_REASONS: Final = {ONLINE: Code.RETURNED.reason, AWAY: Code.AWAY.reason, OFFLINE: Code.NODE_DOWN.reason}


class WatchedDevice(NamedTuple):
    """A device of a user who is online, as others see it."""

    device: str  # "": the default one
    status: str
    since_ms: int  # when it logged in, Unix milliseconds
    device_class: str  # as its login says; "" if it does not
    meta: str  # JSON text set by the client; "" if none

    def memory_bytes(self) -> int:
        """Return its approximate memory."""
        texts = (self.device, self.status, self.device_class, self.meta)
        return DEVICE_BYTES + sum(map(getsizeof, texts))

    def shown(self) -> dict[str, Any]:
        """Return the device as packets have it."""
        shown: dict[str, Any] = {"device": self.device, "status": self.status, "since_ms": self.since_ms}
        if self.device_class:
            shown["class"] = self.device_class
        if self.meta and (said := _meta(self.meta)):
            shown["meta"] = said
        return shown


class WatchedState(NamedTuple):
    """The state of a user as others see it."""

    status: str  # `online`, `away`, `offline`; in answers also `unknown`, `not_allowed`
    since_ms: int | None = None  # Unix milliseconds since when; None: not known
    last_seen_ms: int | None = None  # of an offline user, when last active; None: not known
    id: str = ""  # entry id of the event that led to it; "" if not known
    meta: str = ""  # JSON text set by the client; "" if none
    reason: str = ""  # of an offline user, the name of the code of the event; "" if not known
    devices: tuple[WatchedDevice, ...] | None = None  # None: they are not asked for
    hides_times: bool = False  # others get no times, and nothing that reveals them

    def memory_bytes(self) -> int:
        """Return its approximate memory."""
        texts = getsizeof(self.status) + getsizeof(self.id) + getsizeof(self.meta) + getsizeof(self.reason)
        devices = sum(each.memory_bytes() for each in self.devices) if self.devices else 0
        return STATE_BYTES + texts + devices

    def without_devices(self) -> "WatchedState":
        if self.devices is None:
            return self
        return WatchedState(*self[:6], None, self.hides_times)

    def public(self) -> "WatchedState":
        """Return what of it others are shown."""
        if self.hides_times:  # like one whom the server does not remember; the id begins with a time
            devices = self.devices and tuple(each._replace(since_ms=0) for each in self.devices)
            return WatchedState(self.status, meta=self.meta, devices=devices)
        if self.reason in _SHOWN_AS_LOGOUT:
            # So it is to the millisecond, or it was no logout: one whom an operator ends was last seen
            # up to a keepalive earlier, which would tell the two apart.
            return self._replace(reason=Code.LOGOUT.reason, last_seen_ms=self.since_ms)
        return self

    def shown(self) -> dict[str, Any]:
        """Return the state as packets have it."""
        if self.status in (HIDDEN, REMOVED):
            return {"status": self.status}
        public = self.public()
        state: dict[str, Any] = {
            "status": public.status,
            "since_ms": public.since_ms,
            "last_seen_ms": public.last_seen_ms,
            "id": public.id or None,
        }
        if public.reason:
            state["reason"] = public.reason
        if public.meta and (said := _meta(public.meta)):
            state["meta"] = said
        if public.devices is not None:
            state["devices"] = [each.shown() for each in public.devices]
        return state

    def row(self, uid: str, reason: str = "") -> Row:
        """Return the state as rows have it; `reason`: of a change, as others are shown it."""
        status, since_ms, last_seen_ms, id, meta, own_reason, devices, _ = self.public()
        said = (meta and _meta(meta)) or None
        shown = None if devices is None else [each.shown() for each in devices]
        return make_row(uid, status, reason or own_reason, since_ms, last_seen_ms, id, said, shown)


class UserEvent(NamedTuple):
    """An event of a user, from a stream or a channel."""

    uid: str
    id: EntryId
    state: WatchedState  # of the user from then on
    reason: str  # name of its code
    is_of_device: bool = False  # a device came or went; the state is the same otherwise

    @property
    def is_hidden(self) -> bool:
        """Whether the user was invisible before, and is still: clients see the state from before that."""
        return self.state.status == OFFLINE and self.state.id != id_text(self.id)


class ShardSnapshot(NamedTuple):
    """The requested users of one shard at one moment, and the last entry of its stream by then."""

    states: Mapping[str, WatchedState]
    as_of: EntryId


def id_of(text: str) -> EntryId:
    """Return an entry id from its text.

    Raises:
        ValueError: it is no entry id.
    """
    milliseconds, _, number = text.partition("-")
    return int(milliseconds), int(number or 0)


def id_text(entry_id: EntryId) -> str:
    """Return an entry id as Redis writes it."""
    return f"{entry_id[0]}-{entry_id[1]}"


def bounded(devices: tuple[WatchedDevice, ...]) -> tuple[WatchedDevice, ...]:
    """Return devices as clients are shown them: without `meta` if that is too much for an entry."""
    if sum(len(each.meta.encode(errors="surrogatepass")) for each in devices) <= DEVICES_META_MAX_BYTES:
        return devices
    return tuple(each._replace(meta="") for each in devices)


def reason_for(state: WatchedState) -> str:
    """Return the most likely reason of a state whose event was missed."""
    return _REASONS.get(state.status, Code.UPDATED.reason)


def reason_shown(reason: str) -> str:
    """Return the reason of a change as clients see it: a user whom an operator ends seems to log out."""
    return Code.LOGOUT.reason if reason in _PRIVATE_REASONS else reason


def read_hint(text: str | bytes) -> UserEvent | None:
    """Return the event in the JSON of a user's channel; None if its kind is unknown."""
    try:
        fields = json.loads(text)
        return read_entry(fields["id"], fields)
    except (ValueError, KeyError, TypeError, RecursionError):  # any client that may publish can send anything
        return None


def read_change(uid: str, packed: bytes) -> UserEvent | None:
    """Return the event in a message of all changes of a shard; None if its kind is unknown."""
    try:
        entry_id, kind, reason, status, status_ms, *rest = msgpack.unpackb(
            packed, unicode_errors="backslashreplace"
        )
        fields = dict(zip(rest[::2], rest[1::2], strict=True))
    except (ValueError, TypeError, msgpack.UnpackException):  # any client that may publish can send anything
        return None
    fields.update(uid=uid, type=kind, reason=reason, status=status, status_ms=status_ms)
    return read_entry(entry_id, fields)


def read_entry(entry_id: str, fields: Mapping[str, Any]) -> UserEvent | None:
    """Return an event from the fields of an entry; None if it is of no user, or of an unknown kind."""
    try:
        kind, uid, order = fields["type"], fields["uid"], id_of(entry_id)
        since_ms = int(fields.get("status_ms") or fields.get("since_ms") or fields["at_ms"])
        reason, hides_times = _reason(fields), "hide" in fields
        match kind:
            case "online" | "away" | "update" | "device":
                status, said, devices = fields.get("status"), fields.get("meta"), fields.get("devices")
                meta = said if isinstance(said, str) else ""
                state = WatchedState(
                    str(status or ONLINE), since_ms, None, entry_id, meta, "", _devices(devices), hides_times
                )
            case "offline":
                at_ms = int(fields["at_ms"])
                last_seen_ms = int(fields.get("last_seen_ms") or at_ms)
                state = WatchedState(OFFLINE, at_ms, last_seen_ms, entry_id, "", reason, (), hides_times)
            case _:
                return None
        if (public := fields.get("public")) is not None:
            if fields.get("invisible"):
                state = _public_state(public, entry_id)
                reason = state.reason or Code.LOGOUT.reason  # of a user who hides the times
            else:  # visible again: as if the user came now
                reason = Code(int(public)).reason
        reason = reason or reason_for(state)
        return UserEvent(uid, order, state, reason, kind == "device") if type(uid) is str else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _public_state(text: str, entry_id: str) -> WatchedState:
    """Return how clients see an invisible user; see lib/shown_state.lua for `text`."""
    if not text:
        return WatchedState(OFFLINE, devices=())
    code, said_id, since_ms, last_seen_ms = text.split(" ")
    public_id = entry_id if said_id == _PUBLIC_ID else said_id
    reason = Code(int(code)).reason
    return WatchedState(OFFLINE, int(since_ms), int(last_seen_ms), public_id, reason=reason, devices=())


def _devices(text: str | None) -> tuple[WatchedDevice, ...] | None:
    """Return the devices in an entry; None without them."""
    if text is None:
        return None
    return tuple(
        WatchedDevice(
            str(each["device"]),
            str(each["status"]),
            int(each["since_ms"]),
            str(each.get("class", "")),
            str(each.get("meta", "")),
        )
        for each in json.loads(text)
    )


def _reason(fields: Mapping[str, Any]) -> str:
    """Return the reason in an entry; "" if a packet cannot hold it."""
    said = str(fields.get("reason") or "")
    return said if said.isascii() and len(said) <= REASON_CHARS else ""


def _meta(text: str) -> dict[str, Any]:
    """Return a client's `meta`; {} for a text that no server wrote."""
    try:
        return meta_json.from_text(text)
    except (ValueError, RecursionError):
        return {}
