"""Erases users from Redis.

Entries of the streams are erased page by page, so that Redis serves other clients in between. An entry that a
consumer group has received but not acknowledged is acknowledged first, so that the group does not see it as
trimmed.

Tests: `tests/cli/test_forget.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from presence.followups.script_calls import cancel_call
from presence.followups.stream_keys import FollowupKeys
from presence.rooms.keys import RoomKeys
from presence.store.control_messages import Erasure, erasure_text
from presence.store.keys import Keys
from presence.store.roster_table import erase_call
from presence.store.script_arguments import Shape, unpacked
from presence.store.script_runner import Command, Scripting

UIDS_PER_CALL: Final = 500
ENTRIES_PER_PAGE: Final = 1000  # some 200 KB, in 1.3 ms of Redis' time

Progress = Callable[[int, int], object]
"""Called with the number of entries of a shard scanned so far, and the approximate total."""


@dataclass(slots=True)
class Forgotten:
    """The numbers of what was erased."""

    online: list[str]  # users who are online, and were left unchanged
    last_seen: int = 0  # last-seen times
    events: int = 0  # stream entries
    dead_letters: int = 0  # copies of entries that consumer groups gave up on
    followups: int = 0  # pending and delivered ones
    room_events: int = 0  # entries of the streams of rooms


class Eraser(Scripting):
    """Blocking calls, made from one thread at a time; all raise `StoreUnavailable` or `StoreError`."""

    def __init__(self, url: str, keys: Keys) -> None:
        super().__init__(url)
        self._keys = keys
        self._shape = Shape(keys, maxlen=0, seen_retention_ms=0)  # nothing is trimmed here

    def forget(self, uids: Iterable[str], progress: Progress = lambda _looked, _total: None) -> Forgotten:
        """Erase the data of offline users from Redis: last seen, events, follow-ups, dead letters, rosters.

        Users who are online are left unchanged; data written after the start of the call is kept. A second
        call erases what an interrupted one has left.
        """
        done = Forgotten([])
        by_shard: dict[int, list[str]] = {}
        for uid in dict.fromkeys(uids):
            by_shard.setdefault(self._keys.shard(uid), []).append(uid)
        forgotten = set[str]()
        for shard, members in by_shard.items():
            for first in range(0, len(members), UIDS_PER_CALL):
                some = members[first : first + UIDS_PER_CALL]
                packed, _ = self.one(self._shape.operator_call("forget", shard, some))
                answer = unpacked(packed)
                done.online += answer["online"]
                done.last_seen += answer["seen"]
                if offline := set(some).difference(answer["online"]):
                    self.one(erase_call(self._keys, shard, offline))
                    self._erase(shard, offline, answer["last_id"], done, progress)
                    forgotten |= offline
        if forgotten:
            self._erase_from_rooms(forgotten, done, progress)
        return done

    def _erase(self, shard: int, uids: set[str], last_id: str, done: Forgotten, progress: Progress) -> None:
        """Erase the entries of users: the shard's events up to `last_id`, and all in its other streams.

        Pending follow-ups are erased after the events, so that none is planned again, and before
        delivered ones.
        """
        keys, followup_keys = self._keys, FollowupKeys(self._keys.prefix, self._keys.shards)
        streams = [name for each in (keys, followup_keys) for name in (each.events(shard), each.dead(shard))]
        erase = self._eraser(shard, uids, streams, progress)
        done.events += erase(keys.events(shard), last_id, keys.errors)
        done.dead_letters += erase(keys.dead(shard))
        done.followups += unpacked(self.one(cancel_call(keys, shard, uids)))[1]
        done.followups += erase(followup_keys.events(shard), errors=followup_keys.errors)
        done.dead_letters += erase(followup_keys.dead(shard))

    def _erase_from_rooms(self, uids: set[str], done: Forgotten, progress: Progress) -> None:
        """Erase the entries of users in the streams of rooms, of all shards. Offline users are no members."""
        keys = RoomKeys(self._keys.prefix, self._keys.shards)
        for shard in range(keys.shards):
            erase = self._eraser(shard, uids, [keys.events(shard), keys.dead(shard)], progress)
            done.room_events += erase(keys.events(shard), errors=keys.errors)
            done.dead_letters += erase(keys.dead(shard))

    def _eraser(
        self, shard: int, uids: set[str], streams: Sequence[str], progress: Progress
    ) -> Callable[..., int]:
        """Return a function that erases the entries of users in one of these streams."""
        total, scanned = sum(self._lengths(*streams)), 0
        wanted = {uid.encode() for uid in uids}

        def erase(key: str, end: str = "+", errors: Callable[[int, str], str] | None = None) -> int:
            nonlocal scanned
            noted = [(group, errors(shard, group)) for group in self._groups(key)] if errors else []
            removed = 0
            for ids, entries in self._pages(key, end, wanted):
                removed += self._remove(key, ids, noted) if ids else 0
                scanned += entries
                progress(scanned, total)
            return removed

        return erase

    def note_erasure(self, nodes: Iterable[str], erasure: Erasure) -> None:
        """Ask the first of these nodes that listens to log that users were forgotten."""
        text = erasure_text(erasure)
        for node in nodes:
            if self.commands(self._keys.meta, [("PUBLISH", self._keys.control_channel(node), text)])[0]:
                break

    def _remove(self, key: str, ids: list[str], errors: list[tuple[str, str]]) -> int:
        noted: list[Command] = []
        for group, name in errors:
            noted += [("XACK", key, group, *ids), ("HDEL", name, *ids)]
        removed: int = self.transact(key, [*noted, ("XDEL", key, *ids)])[-1]
        return removed

    def _lengths(self, *streams: str) -> list[int]:
        return self.commands(streams[0], [("XLEN", key) for key in streams])

    def _groups(self, key: str) -> list[str]:
        if not any(self._lengths(key)):
            return []
        (groups,) = self.commands(key, [("XINFO", "GROUPS", key)])
        return [dict(zip(row[::2], row[1::2], strict=True))[b"name"].decode() for row in groups]

    def _pages(self, key: str, end: str, wanted: set[bytes]) -> Iterator[tuple[list[str], int]]:
        """Give, per page, the ids of entries to erase and the number of entries read."""
        begin = "-"
        while True:
            (entries,) = self.commands(key, [("XRANGE", key, begin, end, "COUNT", ENTRIES_PER_PAGE)])
            ids = [name.decode() for name, flat in entries if wanted & {*_uids(flat)}]
            yield ids, len(entries)
            if len(entries) < ENTRIES_PER_PAGE:
                return
            begin = f"({entries[-1][0].decode()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _uids(flat: list[bytes]) -> Iterator[bytes]:
    return (value for name, value in zip(flat[::2], flat[1::2], strict=True) if name == b"uid")
