"""Erasing users' entries from the streams, page by page, so that Redis serves others in between.

Their follow-ups go with them.

An entry that a consumer group was given and has not acknowledged is acknowledged before it goes: the group is
not told that it was trimmed.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgpack

from presence.store.followup_keys import FollowupKeys, cancel_call
from presence.store.keys import Keys
from presence.store.scripting import Scripting

ENTRIES_A_PAGE: Final = 1000  # some 200 KB, in 1.3 ms of Redis' time

Progress = Callable[[int, int], object]
"""Is told the number of entries of a shard looked at, and about how many there are."""


class Erased(NamedTuple):
    """How many entries were erased; `followups`: those told, and those that waited."""

    events: int
    dead_letters: int
    followups: int


class _Page(NamedTuple):
    """Ids of a page's entries that are to go, and how many entries it has."""

    ids: list[str]
    entries: int


class Eraser:
    """Erases entries; calls raise `StoreUnavailable` or `StoreError`, and what was erased stays so.

    Args:
        scripting: the connection.
        keys: how keys are called.
        progress: called after each page.
    """

    def __init__(self, scripting: Scripting, keys: Keys, progress: Progress) -> None:
        self._scripting = scripting
        self._keys = keys
        self._progress = progress

    def erase(self, shard: int, uids: set[str], last_id: str) -> Erased:
        """Erase these users' entries: of the shard's events up to `last_id`, of its other streams all.

        Follow-ups that wait go after the events, so that none is planned again, and before those told.
        """
        keys = self._keys
        told = FollowupKeys(keys.prefix, keys.shards)
        streams = [(keys, last_id), (told, "+")]
        total = sum(
            self._lengths(*(key for each, _ in streams for key in (each.events(shard), each.dead(shard))))
        )
        looked, counts = 0, []
        for names, end in streams:
            if names is told:
                counts += [self._cancel(shard, uids)]
            for key, last, is_shared in ((names.events(shard), end, True), (names.dead(shard), "+", False)):
                noted = (
                    [(group, names.errors(shard, group)) for group in self._groups(key)] if is_shared else []
                )
                counts.append(0)
                for page in self._pages(key, last, {uid.encode() for uid in uids}):
                    counts[-1] += self._remove(key, page.ids, noted) if page.ids else 0
                    looked += page.entries
                    self._progress(looked, total)
        events, letters, pending, followups, their_letters = counts
        return Erased(events, letters + their_letters, pending + followups)

    def _cancel(self, shard: int, uids: set[str]) -> int:
        answer: list[Any] = msgpack.unpackb(self._scripting.one(cancel_call(self._keys, shard, uids)))
        return int(answer[1])

    def _remove(self, key: str, ids: list[str], errors: list[tuple[str, str]]) -> int:
        pipeline = self._scripting.client(key).pipeline(transaction=True)
        for group, noted in errors:
            pipeline.xack(key, group, *ids)
            pipeline.hdel(noted, *ids)
        pipeline.xdel(key, *ids)
        removed: int = self._scripting.answers(pipeline)[-1]
        return removed

    def _lengths(self, *streams: str) -> list[int]:
        pipeline = self._scripting.client(streams[0]).pipeline(transaction=False)
        for key in streams:
            pipeline.xlen(key)
        return self._scripting.answers(pipeline)

    def _groups(self, key: str) -> list[str]:
        if not any(self._lengths(key)):
            return []
        pipeline = self._scripting.client(key).pipeline(transaction=False)
        pipeline.xinfo_groups(key)
        return [group["name"].decode() for group in self._scripting.answers(pipeline)[0]]

    def _pages(self, key: str, end: str, wanted: set[bytes]) -> Iterator[_Page]:
        begin = "-"
        while True:
            pipeline = self._scripting.client(key).pipeline(transaction=False)
            pipeline.xrange(key, begin, end, count=ENTRIES_A_PAGE)
            entries: list[tuple[bytes, Any]] = self._scripting.answers(pipeline)[0]
            ids = [name.decode() for name, fields in entries if fields.get(b"uid") in wanted]
            yield _Page(ids, len(entries))
            if len(entries) < ENTRIES_A_PAGE:
                return
            begin = f"({entries[-1][0].decode()}"
