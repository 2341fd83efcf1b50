"""The table of bans in Redis: one hash, which `bans.lua` changes and every server reads whole."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from presence.common.errors import StoreError
from presence.common.loop_calls import Pacer
from presence.common.networks import network_of, network_text
from presence.common.text import printable
from presence.store.cluster_routes import Connect
from presence.store.control_messages import BanNotice, ban_notice_text
from presence.store.keys import Keys
from presence.store.redis_client import open_client
from presence.store.script_arguments import unpacked
from presence.store.script_runner import Call, Scripting
from presence.store.shard_clients import ShardClients

MAX_BANS: Final = 10_000  # 2 to 6 MB in Redis, and 5 to 21 in each process that knows them
MAX_REASON_CHARS: Final = 200
MAX_BY_CHARS: Final = 200
MAX_DURATION_S: Final = 3650 * 86_400  # for longer there are bans without an end
_VERSION: Final = " version"  # no uid begins with white space
_ADDRESS: Final = (
    " "  # nor does one of these fields; nodes of a release without bans of addresses ignore them
)
_MAX_ADDRESS_CHARS: Final = 43  # of IPv6 with its length
_ALL_DEVICES: Final = "  "  # no device has this name
_NAME: Final = re.compile(r"[^\s]{1,128}(?: \S{0,64})?")


@dataclass(frozen=True, slots=True)
class StoredBan:
    """A ban, as Redis has it."""

    uid: str
    device: str | None  # "" for the default device; None: all devices
    until_ms: int | None  # Unix milliseconds of Redis' clock; None: for ever
    at_ms: int  # when it was made, by the same clock
    reason: str  # "" if none was given
    by: str  # who made it, unverified unless it came over HTTP


@dataclass(frozen=True, slots=True)
class StoredAddressBan:
    """A ban of an address or a network, as Redis has it."""

    address: str  # as `network_text` writes it
    until_ms: int | None  # this and the rest as of a `StoredBan`
    at_ms: int
    reason: str
    by: str


class BanSnapshot(NamedTuple):
    """All bans at one moment."""

    version: bytes  # b"" if there never was one
    now_ms: int  # Redis' clock
    bans: tuple[StoredBan, ...]  # those that have not ended, of users and devices
    addresses: tuple[StoredAddressBan, ...] = ()  # those that have not ended


class TooManyBans(StoreError):
    """The table is full, so that nothing was added."""

    def __init__(self, present: int) -> None:
        super().__init__(f"there are {present} bans, and at most {MAX_BANS} fit: lift some first")


class BanTable(Scripting):
    """The bans of one prefix: blocking calls, one at a time.

    All raise `StoreUnavailable` or `StoreError`.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
    """

    def __init__(self, url: str, keys: Keys, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys

    def read(self, known: bytes | None = None) -> BanSnapshot | None:
        """Return all bans; None if the table still has the version `known`."""
        key = self._keys.bans
        if known is not None and (self.commands(key, [("HGET", key, _VERSION)])[0] or b"") == known:
            return None
        clock, flat = self.commands(key, [("TIME",), ("HGETALL", key)])
        return _table(clock, dict(zip(flat[::2], flat[1::2], strict=True)))

    def add(
        self, uids: Sequence[str], device: str | None, for_s: float | None, reason: str, by: str
    ) -> int | None:
        """Ban users, all or none of them; a ban of the same users and device is replaced.

        Args:
            uids: the users, each once.
            device: see `StoredBan`.
            for_s: seconds; None: for ever.
            reason: for the users, and for operators.
            by: who bans them.

        Returns:
            Unix milliseconds of the end by Redis' clock; None for ever.

        Raises:
            TooManyBans: the table is full.
        """
        return self._add([_field(uid, device) for uid in uids], for_s, reason, by)

    def add_addresses(
        self, addresses: Iterable[str], for_s: float | None, reason: str, by: str
    ) -> int | None:
        """Ban addresses and networks, as `network_text` writes them; otherwise as `add`."""
        return self._add([_ADDRESS + each for each in addresses], for_s, reason, by)

    def _add(self, fields: Sequence[str], for_s: float | None, reason: str, by: str) -> int | None:
        rest = json.dumps({"reason": reason, "by": by[:MAX_BY_CHARS]}, ensure_ascii=False)[1:]
        for_ms = 0 if for_s is None else max(1, round(for_s * 1000))
        answer = self._change([[field, for_ms, rest] for field in fields], [])
        if answer["status"] == "full":
            raise TooManyBans(answer["bans"])
        return answer["until_ms"][0] or None if fields else None

    def lift(self, uids: Iterable[str], device: str | None) -> list[tuple[str, str | None]]:
        """Lift bans; return the user and the device of each. Without a device: all bans of the users."""
        fields = [uid + _ALL_DEVICES if device is None else _field(uid, device) for uid in uids]
        return [_named(field) for field in list(self._change([], fields)["lifted"])]

    def lift_addresses(self, addresses: Iterable[str]) -> list[str]:
        """Lift bans of addresses and networks, as `network_text` writes them; return those lifted."""
        lifted = self._change([], [_ADDRESS + each for each in addresses])["lifted"]
        return [field.removeprefix(_ADDRESS) for field in lifted]

    def notify(self, nodes: Iterable[str], notice: BanNotice) -> None:
        """Tell nodes to read the table again; those that miss it do so after a while."""
        text = ban_notice_text(notice)
        commands = [("PUBLISH", self._keys.control_channel(node), text) for node in nodes]
        if commands:
            self.commands(self._keys.bans, commands)

    def _change(self, added: list[list[Any]], lifted: list[str]) -> dict[str, Any]:
        packed = [msgpack.packb(each, use_bin_type=False) for each in (added, lifted)]
        answer: dict[str, Any] = unpacked(self.one(Call("bans", [self._keys.bans], [*packed, MAX_BANS])))
        return answer


def read_bans(clients: ShardClients, keys: Keys) -> BanSnapshot:
    """Return all bans, for readers."""
    with clients.at(keys.bans).pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.hgetall(keys.bans)
        clock, fields = pipe.execute()
    return _table(clock, fields)


def _field(uid: str, device: str | None) -> str:
    return uid if device is None else f"{uid} {device}"


def _named(field: str) -> tuple[str, str | None]:
    uid, separator, device = field.partition(" ")
    return uid, device if separator else None


def _table(clock: Sequence[Any], fields: Mapping[bytes, bytes]) -> BanSnapshot:
    now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000
    version = fields.get(_VERSION.encode(), b"")
    bans = [each for each in _bans(fields) if each.until_ms is None or each.until_ms > now_ms]
    return BanSnapshot(
        version,
        now_ms,
        tuple(each for each in bans if isinstance(each, StoredBan)),
        tuple(each for each in bans if isinstance(each, StoredAddressBan)),
    )


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _bans(fields: Mapping[bytes, bytes]) -> Iterator[StoredBan | StoredAddressBan]:
    """Give the bans in the table; a damaged one counts as absent."""
    pacer = Pacer()
    for name, text in fields.items():
        pacer.note()
        try:
            field, ban = name.decode(), json.loads(text)
            until_ms, at_ms, reason, by = (ban[each] for each in ("until_ms", "at_ms", "reason", "by"))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        is_sound = _is_time(at_ms) and (until_ms is None or _is_time(until_ms))
        if not (is_sound and type(reason) is str and type(by) is str):
            continue
        reason, by = printable(reason[:MAX_REASON_CHARS]), printable(by[:MAX_BY_CHARS])
        if _NAME.fullmatch(field):
            yield StoredBan(*_named(field), until_ms, at_ms, reason, by)
        elif _is_address(field):
            yield StoredAddressBan(field.removeprefix(_ADDRESS), until_ms, at_ms, reason, by)


def _is_address(field: str) -> bool:
    text = field.removeprefix(_ADDRESS)
    if text == field or len(text) > _MAX_ADDRESS_CHARS:
        return False
    try:
        return network_text(network_of(text)) == text
    except ValueError:
        return False
