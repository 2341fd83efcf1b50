"""A snapshot of who is online, then all events after it, without a gap between them.

There may be millions of users online, so they are read in pages while changes go on. The streams make the
result exact: first their ends P are noted, then the pages are read, then the events after P are applied, up
to their ends Q after the last page. The state of a user with an event between P and Q is that of their last
event; a user without one did not change, and the scan returns every user who was present all the time. So the
snapshot is exactly the state at Q, and following continues after Q.

`SnapshotSource` does this for any streams and tables; `presence.rooms.stream` reads rooms with it.
"""

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from presence.protocol.constants import Status
from presence.store.keys import Keys
from presence.store.records import online_state
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import (
    NO_META,
    Away,
    Gap,
    Item,
    Meta,
    Offline,
    Online,
    Updated,
    decode,
    id_order,
    read_meta,
    utc,
)
from presence.subscriber.follower import Follower
from presence.subscriber.redis_connections import RedisConnections
from presence.subscriber.source import Source

View = TypeVar("View")
USERS_PER_PAGE = 1000  # a page of some 300 KB, in well under a millisecond of Redis' time


class Period(NamedTuple):
    """A user's current online period: its beginning, Unix milliseconds, and the id of its online event."""

    since_ms: int
    id: str

    @property
    def since(self) -> datetime:
        """`since_ms` as a time in UTC."""
        return utc(self.since_ms)


class Shown(NamedTuple):
    """An online user's status, `meta` and `private`, and since when the status holds, Unix milliseconds.

    `invisible`: to clients, who are shown the user as offline.
    """

    status: Status
    since_ms: int
    meta: Meta = NO_META
    private: Meta = NO_META
    invisible: bool = False

    @property
    def since(self) -> datetime:
        """`since_ms` as a time in UTC."""
        return utc(self.since_ms)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Who was online at one moment of each shard's stream.

    `shown` has the users who are not plainly online, are invisible, or have `meta` or `private`. It is
    empty unless requested.
    """

    online: Mapping[str, Period]
    positions: Mapping[int, str]  # by shard: the last entry id included
    shown: Mapping[str, Shown] = field(default_factory=dict)


class SnapshotSource(Source[Any], Generic[View]):
    """A source that gives a snapshot, then items; after a gap found while reading, a new snapshot.

    Args:
        connections: its own.
        prefix: of all keys.
        kind: class of key names, if the streams are not those of events.
    """

    def __init__(self, connections: RedisConnections, prefix: str, kind: type[Keys] = Keys) -> None:
        super().__init__(connections)
        self._follower = Follower(connections, prefix, kind=kind)
        self._buffer: deque[Any] = deque()
        self._snapshot_due = True

    @abstractmethod
    def _scan(self, clients: ShardClients, keys: Keys) -> View:
        """Read the tables of all shards, page by page, while they change."""

    @abstractmethod
    def _apply(self, view: View, items: list[Item]) -> None:
        """Bring the result of a scan up to date with entries written meanwhile."""

    @abstractmethod
    def _finished(self, view: View, positions: dict[int, str]) -> Any:
        """Return the snapshot; `positions`: by shard, the last entry id included."""

    @property
    def has_work(self) -> bool:
        return not self._buffer and (self._snapshot_due or self._follower.has_work)

    def fetch(self) -> None:
        """Fetch a snapshot if one is due, else entries as `Follower.fetch` does."""
        if self._buffer:
            return
        if not self._snapshot_due:
            self._follower.fetch()
            return
        with self._connections.borrow() as clients:
            clients.readmit(is_early=True)  # all shards are needed
            snapshot = self._snapshot(clients)
        if snapshot is not None:
            self._buffer.append(snapshot)
            self._snapshot_due = False

    def next(self) -> Any:
        if self._buffer:
            return self._buffer.popleft()
        if self._snapshot_due:
            return None
        item = self._follower.next()
        # The events after a gap of the server make up for it; those after a gap of reading do not.
        if isinstance(item, Gap):
            self._snapshot_due = True
            self._follower.discard_buffer()
        return item

    def _snapshot(self, clients: ShardClients) -> Any:
        """Return a snapshot, or None if entries were removed meanwhile: then call again."""
        follower = self._follower
        follower.add_shards(clients)
        follower.seek_ends(clients)
        view = self._scan(clients, follower.shards.keys)
        ends = follower.ends(clients)
        while True:
            items = follower.read(clients)
            if any(isinstance(item, Gap) for item in items):
                return None
            self._apply(view, items)
            if all(id_order(follower.positions[shard]) >= id_order(end) for shard, end in ends.items()):
                return self._finished(view, follower.positions)


class SnapshotFollower(SnapshotSource[tuple[dict[str, Period], dict[str, Shown]]]):
    """A source that gives a `Snapshot` of users, then their events."""

    def __init__(self, connections: RedisConnections, prefix: str, with_shown: bool = False) -> None:
        super().__init__(connections, prefix)
        self._with_shown = with_shown

    def _scan(self, clients: ShardClients, keys: Keys) -> tuple[dict[str, Period], dict[str, Shown]]:
        online: dict[str, Period] = {}
        shown: dict[str, Shown] = {}
        for shard in range(keys.shards):
            for page in pages(clients, keys.online(shard), "hscan"):
                for name, text in page.items():
                    uid = name.decode("utf-8", "backslashreplace")
                    if period := _period(text):
                        online[uid] = period
                    if self._with_shown and (found := _shown(text)):
                        shown[uid] = found
        return online, shown

    def _apply(self, view: tuple[dict[str, Period], dict[str, Shown]], items: list[Item]) -> None:
        _apply(*view, items)

    def _finished(
        self, view: tuple[dict[str, Period], dict[str, Shown]], positions: dict[int, str]
    ) -> Snapshot:
        online, shown = view
        return Snapshot(online, positions, shown if self._with_shown else {})


def pages(clients: ShardClients, key: str, scan: Literal["hscan", "zscan"]) -> Iterator[Any]:
    """Give a hash or sorted set page by page, as redis-py returns it.

    All come over one connection: on another or a restarted server the cursor means nothing.
    """
    cursor = 0
    with clients.at(key).client() as client:  # type: ignore[no-untyped-call]  # redis-py's
        while True:
            clients.check()
            cursor, page = getattr(client, scan)(key, cursor, count=USERS_PER_PAGE)
            yield page
            if not cursor:
                return


def _apply(online: dict[str, Period], shown: dict[str, Shown], items: list[Item]) -> None:
    for item in items:
        match decode(item):
            case Online() as event:
                online[event.uid] = Period(event.since_ms, event.id)
                how = Shown(event.status, event.since_ms, event.meta, event.private, event.invisible)
                _show(shown, event.uid, how)
            case Away() as event:
                _show(shown, event.uid, Shown(event.status, event.at_ms, event.meta, event.private))
            case Updated() as event:
                how = Shown(event.status, event.status_ms, event.meta, event.private, event.invisible)
                _show(shown, event.uid, how)
            case Offline() as event:
                online.pop(event.uid, None)
                shown.pop(event.uid, None)
            case _:
                pass


def _show(shown: dict[str, Shown], uid: str, how: Shown) -> None:
    if how != Shown("online", how.since_ms):
        shown[uid] = how
    else:
        shown.pop(uid, None)


def _period(text: bytes) -> Period | None:
    """Return the period in a record; a damaged record counts as absent, as it does for the server."""
    try:
        record = json.loads(text)
        return Period(int(record["since_ms"]), str(record["id"])) if record["sessions"] else None
    except (ValueError, TypeError, KeyError):
        return None


def _shown(text: bytes) -> Shown | None:
    """Return what a user shows by a record; None: plainly online."""
    if not any(name in text for name in (b'"away"', b'"status"', b'"meta"', b'"private"')):
        return None  # nearly all records
    state = online_state(text)
    if state is None:
        return None
    meta, private = (read_meta(state.get(name, "")) for name in ("meta", "private"))
    how = Shown(state["status"], state["since_ms"], meta, private, "invisible" in state)
    return None if how == Shown("online", how.since_ms) else how
