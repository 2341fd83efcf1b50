"""Keeps the rosters of an application's users: whom the clients of each user watch, through Redis only::

    from presence.rosters import PresenceRosters

    with PresenceRosters("redis://localhost:6379") as rosters:
        rosters.put("ann", ["bob", "carl"])  # replaces the list
        rosters.add("ann", ["dora"])
        rosters.remove("ann", ["bob"])
        print(rosters.get("ann"))  # ['carl', 'dora']

Clients of these users that follow their roster learn of a change within a moment, without another login.
Redis keeps rosters until they are put anew; an emptied one stays, as an empty one. If Redis loses its data,
put them again: connected clients keep what they watch until then.

Its calls block. In an async program, make them in threads; several may run in parallel::

    await anyio.to_thread.run_sync(rosters.add, "ann", ["eve"])

Tests: `tests/store/test_roster_table.py`, `tests/cli/test_roster.py`.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from presence.common.errors import StoreError
from presence.protocol import UIDS_MAX
from presence.protocol.schema import uid_complaint
from presence.reader import PresenceReader
from presence.store.error_classes import calling
from presence.store.keys import Keys
from presence.store.roster_table import RosterChange, RosterFull, RosterTable, read_rosters
from presence.store.shard_clients import ShardClients

__all__ = ["PresenceRosters", "RosterFull"]

MAX_MB: Final = 1_000  # of all rosters: half a million with 150 users each; as the setting `roster_memory`
MAX_ROSTERS: Final = 100  # in one call


class PresenceRosters:
    """The rosters of one prefix, at most 500 users each.

    Every call may be made from any thread; those that change rosters are made one after the other. They
    return the number of users in the roster, and may be repeated when they fail.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or ``redis+sentinel://``, as
            `presence.common.redis_url` takes it; nothing is sent yet.
        prefix: prefix of the servers' keys.
        max_mb: what all rosters may take of Redis' memory, in MB; each shard has an equal part. Beyond it
            `RosterFull` is raised; what makes rosters smaller is always possible.

    Raises:
        ValueError: the URL is invalid; by later calls: a uid is, or there are more than 500.
        StoreUnavailable, StoreError: by later calls: Redis does not answer, or refuses. `RosterFull` is a
            `StoreError`: the roster is unchanged.
    """

    def __init__(self, url: str, *, prefix: str = "presence", max_mb: int = MAX_MB) -> None:
        self._url = url
        self._max_bytes = max_mb * 1_000_000
        self._reader = PresenceReader(url, prefix=prefix)
        self._clients = ShardClients(url)
        self._lock = threading.Lock()
        self._table: tuple[Keys, RosterTable] | None = None  # since the first change

    def get(self, uid: str) -> list[str] | None:
        """Return the users in a roster, in the order of their bytes; None if it was never put."""
        _check([uid])
        with calling():
            keys = self._reader.keys()
            found = self._clients.read(lambda clients: read_rosters(clients, keys, [uid]))[uid]
        return None if found is None else [*found]

    def put(self, uid: str, uids: Iterable[str]) -> int:
        """Replace a roster."""
        return self._change([RosterChange(uid, (), _check(uids), is_new=True)])

    def add(self, uid: str, uids: Iterable[str]) -> int:
        """Add users to a roster; those in it already stay."""
        return self._change([RosterChange(uid, (), _check(uids))])

    def remove(self, uid: str, uids: Iterable[str]) -> int:
        """Remove users from a roster, if they are in it."""
        return self._change([RosterChange(uid, _check(uids), ())])

    def put_all(self, rosters: Mapping[str, Iterable[str]]) -> None:
        """Replace rosters of some users, at most `MAX_ROSTERS`; if one is refused, the others are put."""
        if len(rosters) > MAX_ROSTERS:
            raise ValueError(f"at most {MAX_ROSTERS} rosters in a call, not {len(rosters)}")
        self._change([RosterChange(uid, (), _check(uids), is_new=True) for uid, uids in rosters.items()])

    def change(self, uid: str, *, remove: Iterable[str] = (), add: Iterable[str] = ()) -> int:
        """Remove users from a roster and add others, in one step."""
        return self._change([RosterChange(uid, _check(remove), _check(add))])

    def close(self) -> None:
        """Close the connections; calls in other threads fail."""
        with self._lock:
            if self._table is not None:
                self._table[1].shut_down()
        self._clients.close()
        self._reader.close()

    def _change(self, changes: Sequence[RosterChange]) -> int:
        """Return the number of users in the last roster."""
        _check([each.uid for each in changes])
        with calling():
            keys = self._reader.keys()
        with self._lock:
            if self._table is None or self._table[0] != keys:
                self._table = keys, RosterTable(self._url, keys, self._max_bytes)
            counts = self._table[1].change(changes)
        users = 0
        for each in counts:
            if isinstance(each, StoreError):
                raise each
            users = each
        return users

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self.close()


def _check(uids: Iterable[str]) -> list[str]:
    if isinstance(uids, str):
        raise TypeError(f"a list of uids is needed, not the text {uids!r}")
    found = list(dict.fromkeys(uids))
    if len(found) > UIDS_MAX:
        raise ValueError(f"a roster has at most {UIDS_MAX} users, not {len(found)}")
    for uid in found:
        if complaint := uid_complaint(uid):
            raise ValueError(f"{uid!r} is not a valid uid: it {complaint}")
    return found
