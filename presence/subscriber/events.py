"""What a subscriber gets: typed events, made from the entries of the streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from protocol import Code

GapReason = Literal["dropped", "trimmed", "lost_writes"]
ENTRY_NUMBERS = frozenset({"v", "code", "dropped"})  # fields that hold numbers, beside those in ``_ms``
ZERO_ID = "0-0"
NAMES_KEPT = 64  # names of fields; the same dozen comes with each entry


class Entry(NamedTuple):
    """An entry of a shard's stream as it was written.

    Attributes:
        shard: the shard's number.
        id: the entry id, such as ``1700000000000-0``.
        fields: as `redis-cli` shows them.
        deliveries: how often this consumer group was given it, this time included; 1 without a group.
    """

    shard: int
    id: str
    fields: Mapping[str, str]
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class Online:
    """A user came online: his first session logged in.

    Attributes:
        shard: the user's shard.
        id: the entry id. Of two events of a user, the one with the higher id is the newer.
        uid: the user.
        device: the device of that session; ``""`` is the default one.
        session: the session's id.
        node: the server node that told it.
        code: 1 login, 2 returned (registered anew after a sweep, or after Redis lost data).
        reason: the code's name.
        at_ms: Unix milliseconds of the decision, as of all times here.
        since_ms: beginning of this online period.
        last_seen_ms: the session's last valid frame before the event.
        deliveries: how often this consumer group was given the event, this time included.
    """

    shard: int
    id: str
    uid: str
    device: str
    session: str
    node: str
    code: int
    reason: str
    at_ms: int
    since_ms: int
    last_seen_ms: int
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class Offline:
    """A user went offline: his last session ended. Attributes as of `Online`, and one more.

    Attributes:
        code: why, for example 100 logout, 200 closed, 201 idle_timeout.
        since_id: the entry id of the online event that this one ends.
    """

    shard: int
    id: str
    uid: str
    device: str
    session: str
    node: str
    code: int
    reason: str
    at_ms: int
    since_ms: int
    last_seen_ms: int
    since_id: str
    deliveries: int = 1


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing here. Whoever keeps a view of who is online should take a new snapshot.

    Attributes:
        shard: where.
        id: of a gap that the server wrote: its entry id; otherwise the id after which events are missing.
        reason: ``dropped``: the server's own queue was full while Redis was away; it wrote this entry, and
            what follows brings a view of the users up to date. ``trimmed``: the stream's cap removed entries
            before they were read. ``lost_writes``: Redis no longer has what it had. An empty Redis that was
            filled again before anybody looked may count as trimmed.
        dropped: how many events are missing, where that is known.
        from_ms: Unix ms at which the gap began, where the server wrote it.
        to_ms: Unix ms at which it ended.
        deliveries: as of `Online`.
    """

    shard: int
    id: str
    reason: GapReason
    dropped: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    deliveries: int = 1


Event = Online | Offline | Gap
Item = Entry | Gap


def decode(item: Item) -> Event | None:
    """Return the typed event, or None where this version knows no such type or a field is missing."""
    if isinstance(item, Gap):
        return item
    fields = item.fields
    try:
        match fields["type"]:
            case "online":
                return Online(*_common(item), deliveries=item.deliveries)
            case "offline":
                return Offline(*_common(item), since_id=fields["since_id"], deliveries=item.deliveries)
            case "gap":
                span = (int(fields["dropped"]), int(fields["from_ms"]), int(fields["to_ms"]))
                return Gap(item.shard, item.id, "dropped", *span, deliveries=item.deliveries)
            case _:
                return None
    except (KeyError, ValueError):
        return None


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
    """Make an entry of what redis-py returns; bytes that are no UTF-8 are escaped."""
    entry_id, fields = raw
    texts = {_name(key): value.decode("utf-8", "backslashreplace") for key, value in fields.items()}
    return Entry(shard, entry_id.decode(), texts, deliveries)


def id_order(entry_id: str) -> tuple[int, int]:
    """Return what entry ids are compared by."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


@lru_cache(NAMES_KEPT)
def _name(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
