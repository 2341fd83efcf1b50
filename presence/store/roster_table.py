"""Rosters in Redis: a hash for each shard, which `roster.lua` changes.

A roster that its backend has emptied is kept as empty. So one that is not there was never given, or was lost
with the data of Redis: then sessions keep what they watch.

Tests: `tests/store/test_roster_table.py`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from presence.common.errors import StoreError
from presence.common.loop_calls import Pacer
from presence.protocol import UID_MAX_BYTES, UIDS_MAX
from presence.store.cluster_routes import Connect
from presence.store.error_classes import as_failure
from presence.store.keys import Keys
from presence.store.redis_client import RedisError, open_client
from presence.store.script_arguments import unpacked
from presence.store.script_runner import Call, Scripting
from presence.store.shard_clients import ShardClients

MAX_CHANGES_PER_CALL: Final = 16  # of 500 users each: some milliseconds of Redis' time
# What no list of uids has: the rules for uids in one search, because a login reads hundreds.
_NO_UIDS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f{}]|[^\S ]|^ | $|  ")
_TOO_LONG: Final = re.compile(rb"[^ ]{%d}" % (UID_MAX_BYTES + 1))
_TOO_MANY: Final = -1
_NO_ROOM: Final = -2

Roster: TypeAlias = tuple[str, ...]
"""The uids of a roster, in the order of their bytes."""


class RosterFull(StoreError):
    """A roster was left unchanged: it would have too many users, or there is no room for it."""


class RosterChange(NamedTuple):
    """A change of the roster of `uid`: uids to remove, then uids to add."""

    uid: str
    removed: Collection[str]
    added: Collection[str]
    is_new: bool = False  # whether it begins with an empty roster


class RosterTable(Scripting):
    """The rosters of one prefix: blocking calls, one at a time.

    All raise `StoreUnavailable` or `StoreError`. Some changes may have been made then; all can be repeated.

    Args:
        url, connect: see `Scripting`.
        keys: key names.
        max_bytes: of all rosters in Redis, in about equal parts for the shards.
    """

    def __init__(self, url: str, keys: Keys, max_bytes: int, connect: Connect = open_client) -> None:
        super().__init__(url, connect)
        self._keys = keys
        self._max_bytes = max_bytes // keys.shards

    def change(self, changes: Sequence[RosterChange]) -> list[int | StoreError]:
        """Change rosters, each for itself, in order.

        Returns:
            For each the number of users in the roster, or the error that left it unchanged.
        """
        answers: list[int | StoreError] = [0] * len(changes)
        places: list[Sequence[int]] = []
        calls: list[Call] = []
        by_shard: dict[int, list[int]] = {}
        for place, each in enumerate(changes):
            by_shard.setdefault(self._keys.shard(each.uid), []).append(place)
        for shard, some in by_shard.items():
            for first in range(0, len(some), MAX_CHANGES_PER_CALL):
                places.append(some[first : first + MAX_CHANGES_PER_CALL])
                rows = [
                    [each.uid, int(each.is_new), [*each.removed], [*each.added]]
                    for each in map(changes.__getitem__, places[-1])
                ]
                calls.append(_call(self._keys, shard, self._max_bytes, rows, []))
        for group, answer in zip(places, self.evaluate(calls), strict=True):
            if isinstance(answer, Exception):
                raise answer
            for place, count in zip(group, unpacked(answer), strict=True):
                answers[place] = self._failure(changes[place].uid, count) if count < 0 else count
        return answers

    def _failure(self, uid: str, answer: int) -> StoreError:
        if answer == _TOO_MANY:
            return RosterFull(f"the roster of {uid} would have more than {UIDS_MAX} users")
        return RosterFull(
            f"no room for the roster of {uid}: the rosters of its shard take {self._max_bytes} bytes"
        )


def erase_call(keys: Keys, shard: int, uids: Iterable[str]) -> Call:
    """Return the call that erases the rosters of users of a shard; sessions keep what they watch."""
    return _call(keys, shard, 0, [], [*uids])


def _call(keys: Keys, shard: int, max_bytes: int, changes: list[Any], erased: list[str]) -> Call:
    packed = [msgpack.packb(each, use_bin_type=False) for each in (changes, erased)]
    return Call("roster", [keys.rosters(shard)], [keys.roster_channel, UIDS_MAX, max_bytes, *packed])


class StoredRosters:
    """The rosters in Redis, for nodes and backends; `read` is blocking, calls one at a time.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        keys: key names.
    """

    def __init__(self, url: str, keys: Keys) -> None:
        self._clients = ShardClients(url)
        self._keys = keys

    def read(self, uids: Sequence[str]) -> Mapping[str, Roster | None]:
        """Return the rosters of some users; None for one that is not there, or is damaged.

        Raises:
            StoreUnavailable, StoreError: Redis is unreachable, or refuses.
        """
        try:
            return self._clients.read(lambda clients: read_rosters(clients, self._keys, uids))
        except (RedisError, OSError) as error:
            raise as_failure(error) from error

    def close(self) -> None:
        """Close the connections for good."""
        self._clients.close()


def read_rosters(clients: ShardClients, keys: Keys, uids: Iterable[str]) -> dict[str, Roster | None]:
    """Return the rosters of some users, as `StoredRosters.read`, in one round trip to each server."""
    by_shard: dict[int, list[str]] = {}
    for uid in dict.fromkeys(uids):
        by_shard.setdefault(keys.shard(uid), []).append(uid)

    def fill(pipe: Any, shard: int) -> None:
        pipe.hmget(keys.rosters(shard), by_shard[shard])

    rosters: dict[str, Roster | None] = {}
    pacer = Pacer()
    for shard, (texts,) in clients.ask(keys, by_shard, fill).items():
        for uid, text in zip(by_shard[shard], texts, strict=True):
            pacer.note(len(text or b""))
            rosters[uid] = None if text is None else uids_in(text)
    return rosters


def read_changed(packed: bytes) -> Roster:
    """Return the users whose rosters have changed, from a message of `Keys.roster_channel`; () if damaged."""
    try:
        uids = msgpack.unpackb(packed)
        return tuple(uids) if all(isinstance(uid, str) for uid in uids) else ()
    except (ValueError, TypeError):
        return ()


def uids_in(text: bytes) -> Roster | None:
    """Return the uids in a text of a script; None if a name is no uid, or there are too many."""
    try:
        found = text.decode()
    except UnicodeDecodeError:
        return None
    if _NO_UIDS.search(found) or _TOO_LONG.search(text):
        return None
    uids = tuple(found.split(" ")) if found else ()
    return uids if len(uids) <= UIDS_MAX else None
