"""Reads who is online directly from Redis::

    from presence.reader import PresenceReader, UserFilter

    with PresenceReader("redis://localhost:6379") as reader:
        print(reader.count(), "online")
        print(reader.states(["ann", "bob"])["ann"]["status"])
        for page in reader.pages():
            print(*page.states)
        for page in reader.pages(wanted=UserFilter(uid_prefix="team-a:", device_class="phone")):
            print(*page.states)

        print(reader.rooms(largest=10))
        print(*reader.members("lobby").members)

Its calls block. In an async program, make them in threads; several may run in parallel::

    states = await anyio.to_thread.run_sync(reader.states, uids)

Tests: `tests/subscriber/test_reader.py`, `tests/system/test_reader.py`.
"""

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from presence.common import meta_json
from presence.common.redis_url import database
from presence.protocol.schema import room_complaint, uid_complaint
from presence.store.ban_table import StoredAddressBan, StoredBan, read_bans
from presence.store.error_classes import passes
from presence.store.keys import Keys
from presence.store.node_states import NodeState, read_nodes
from presence.store.records import State, count_online, read_page, read_states, stored_shards
from presence.store.redis_client import RedisError
from presence.store.room_reads import read_largest, read_members, read_room, read_room_page
from presence.store.shard_clients import ShardClients
from presence.store.user_filter import ALL_USERS, UserFilter

__all__ = ["MemberPage", "Page", "PresenceReader", "Room", "RoomPage", "UserFilter"]

SHARD_COUNT_TTL_S = 60.0  # it changes only if Redis is emptied
USERS_PER_PAGE = 1000  # some 300 KB, in well under a millisecond of Redis' time
MAX_LARGEST = 1000  # rooms in one answer
SEARCH_S = 0.5  # for the wanted users of one page, in many calls
_CURSOR = re.compile(r"(\d{1,9})-(\d{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the users online."""

    # uid to state, as of `PresenceReader.states`; may be empty although more pages follow
    states: dict[str, State]
    cursor: str | None  # for the next page; None after the last one


@dataclass(frozen=True, slots=True)
class Room:
    """A room. One without members has no data: its times are None, whether it ever had any."""

    name: str
    count: int  # members; a user is one, whatever the number of sessions
    public: int  # members who are not invisible: those whom clients may be told of
    since_ms: int | None  # since when it has had members, Unix milliseconds by the clock of Redis
    id: str | None  # of the entry `occupied` in the stream of rooms


@dataclass(frozen=True, slots=True)
class RoomPage:
    """Some of the rooms that have members."""

    rooms: dict[str, int]  # to the number of members
    cursor: str | None  # for the next page; None after the last one


@dataclass(frozen=True, slots=True)
class MemberPage:
    """Some of the members of a room."""

    # uid to {status, invisible, id}: the id is that of the event, in the user's shard, that says so
    members: dict[str, State]
    cursor: str | None  # for the next page; None after the last one


class PresenceReader:
    """Reads states, counts and pages of a presence server's users from its Redis.

    Every call may be made from any thread, and raises `RedisError` when Redis cannot answer. A connection
    whose call failed is closed. On a single Redis nothing is retried. In a cluster, a call that found a
    shard's server unreachable is retried once, with the server that owns the shard then.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or ``redis+sentinel://``, as
            `presence.common.redis_url` takes it; nothing is sent yet.
        prefix: prefix of the server's keys.

    Raises:
        ValueError: the URL is invalid; by later calls: Redis does not hold data of a presence server.
    """

    def __init__(self, url: str, *, prefix: str = "presence") -> None:
        self._clients = ShardClients(url)
        self._prefix = prefix
        self._database = database(url)
        self._shards: tuple[int, float] | None = None  # number, and until when it is cached

    def states(self, uids: Iterable[str]) -> dict[str, State]:
        """Return the state of each user, in the order of `uids`.

        As of `read_states`, but `meta` and `private` are maps, and there is no `public`: this is the truth.

        Raises:
            ValueError: a uid breaks the rules of the protocol, so that no user can have it.
        """
        wanted = list(uids)
        for uid in wanted:
            if complaint := uid_complaint(uid):
                raise ValueError(f"{uid!r} is not a valid uid: it {complaint}")
        return _with_maps(self._clients.read(lambda clients: read_states(clients, self._keys(), wanted)))

    def state(self, uid: str) -> State:
        """Return the state of one user."""
        return self.states([uid])[uid]

    def count(self) -> int:
        """Return the number of users online, at about one moment for all shards.

        Users of silent nodes are included, because they have not been reported offline.
        """
        return self._clients.read(lambda clients: count_online(clients, self._keys()))

    def page(
        self, cursor: str | None = None, *, size: int = USERS_PER_PAGE, wanted: UserFilter = ALL_USERS
    ) -> Page:
        """Return some of the users online who are `wanted`, in no order, and the cursor of the next page.

        A user who is online, and wanted, from the first page to the last is in one of them, unless Redis
        restarts or fails over meanwhile, or the slot of the shard moves. A user who comes or goes meanwhile
        may be missing. A user may be in two pages if many come or go meanwhile, because Redis then rearranges
        its table. For an exact view see the snapshots of `presence.subscriber.follow`. `size` is approximate:
        a small shard comes whole. Where few users are wanted, a page ends after `SEARCH_S`, and may have none
        although more follow.

        Raises:
            ValueError: the cursor is not one of a page.
        """
        keys = self.keys()
        shard, position = _place(cursor, keys.shards)
        states: dict[str, State] = {}
        examined = size
        give_up = time.monotonic() + SEARCH_S
        while True:
            read = partial(read_page, keys=keys, shard=shard, position=position, size=examined, wanted=wanted)
            some, shard, position = self._clients.read(read)
            states |= some
            is_enough = wanted == ALL_USERS or len(states) >= size or time.monotonic() >= give_up
            if is_enough or shard == keys.shards:
                return Page(_with_maps(states), _cursor(shard, position, keys.shards))
            # Few of them are wanted: look at more of them in one call, which Redis does in a millisecond.
            examined = size if some else max(size, min(2 * examined, USERS_PER_PAGE))

    def pages(self, *, size: int = USERS_PER_PAGE, wanted: UserFilter = ALL_USERS) -> Iterator[Page]:
        """Return all pages, one after the other; only one is in memory at a time."""
        page = self.page(size=size, wanted=wanted)
        yield page
        while page.cursor is not None:
            page = self.page(page.cursor, size=size, wanted=wanted)
            yield page

    def rooms(self, *, largest: int = 100) -> dict[str, int]:
        """Return the rooms with the most members, largest first, and the number of members of each.

        Raises:
            ValueError: `largest` is not from 1 to `MAX_LARGEST`.
        """
        if not 1 <= largest <= MAX_LARGEST:
            raise ValueError(f"largest is a number from 1 to {MAX_LARGEST}, not {largest}")
        return self._clients.read(lambda clients: read_largest(clients, self._keys(), largest))

    def room_page(self, cursor: str | None = None, *, size: int = USERS_PER_PAGE) -> RoomPage:
        """Return some of the rooms that have members, in no order; like `page`, with the same promises.

        Raises:
            ValueError: the cursor is not one of a page of rooms.
        """
        keys = self.keys()
        shard, position = _place(cursor, keys.shards)
        rooms: dict[str, int] = {}
        while shard < keys.shards and len(rooms) < size:
            read = partial(read_room_page, keys=keys, shard=shard, position=position, size=size)
            some, shard, position = self._clients.read(read)
            rooms |= some
        return RoomPage(rooms, _cursor(shard, position, keys.shards))

    def room(self, name: str) -> Room:
        """Return a room; of one without members the count is 0.

        Raises:
            ValueError: the name breaks the rules of the protocol, so that no room can have it.
        """
        _check_room(name)
        count, public, entry_id = self._clients.read(lambda clients: read_room(clients, self._keys(), name))
        since_ms = int(entry_id.partition("-")[0]) if entry_id else None
        return Room(name, count, public, since_ms, entry_id)

    def members(self, name: str, cursor: str | None = None, *, size: int = USERS_PER_PAGE) -> MemberPage:
        """Return some of the members of a room, in no order; like `page`, with the same promises.

        The invisible ones are among them: this is the truth. `size` is approximate.

        Raises:
            ValueError: the name is that of no room, or the cursor is not one of a page of members.
        """
        _check_room(name)
        _, position = _place(f"0-{cursor or 0}", 1)
        members, position = self._clients.read(
            lambda clients: read_members(clients, self._keys(), name, position, size)
        )
        return MemberPage(members, str(position) if position else None)

    def nodes(self) -> list[NodeState]:
        """Return all nodes, by id, as they described themselves at their last lease renewal."""
        return self._clients.read(lambda clients: read_nodes(clients, Keys(self._prefix)))

    def bans(self) -> list[StoredBan]:
        """Return the bans that have not ended, the latest first."""
        table = self._clients.read(lambda clients: read_bans(clients, Keys(self._prefix)))
        return sorted(table.bans, key=lambda ban: (-ban.at_ms, ban.uid, ban.device or ""))

    def address_bans(self) -> list[StoredAddressBan]:
        """Return the bans of addresses and networks that have not ended, the latest first."""
        table = self._clients.read(lambda clients: read_bans(clients, Keys(self._prefix)))
        return sorted(table.addresses, key=lambda ban: (-ban.at_ms, ban.address))

    def keys(self) -> Keys:
        """Return the key names, with the number of shards."""
        return self._clients.read(lambda _clients: self._keys())

    def close(self) -> None:
        """Close the connections."""
        self._clients.close()

    def _keys(self) -> Keys:
        known, now = self._shards, time.monotonic()
        if known and now < known[1]:
            return Keys(self._prefix, known[0], self._database)
        try:
            stored = stored_shards(self._clients, self._prefix)
        except RedisError as error:
            # In a cluster the server that has it may be unreachable while others answer.
            if not (known and self._clients.is_cluster and passes(error)):
                raise
            stored = known[0]
        self._shards = (stored, now + SHARD_COUNT_TTL_S) if stored else None
        return Keys(self._prefix, stored or 1, self._database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(cursor: str | None, shards: int) -> tuple[int, int]:
    """Return the shard and the position of a cursor; the beginning without one."""
    found = _CURSOR.fullmatch(cursor or "0-0")
    if not found or int(found[1]) >= shards or int(found[2]) >= 2**64:
        raise ValueError(f"{cursor!r} is not the cursor of a page")
    return int(found[1]), int(found[2])


def _cursor(shard: int, position: int, shards: int) -> str | None:
    return f"{shard}-{position}" if shard < shards else None


def _check_room(name: str) -> None:
    if complaint := room_complaint(name):
        raise ValueError(f"{name!r} is not a valid name of a room: it {complaint}")


def _with_maps(states: dict[str, State]) -> dict[str, State]:
    """Replace JSON texts by maps, where a damaged text counts as absent; drop what clients are shown."""
    for state in states.values():
        state.pop("public", None)
        for each in (state, *state["sessions"]):
            for name in ("meta", "private"):
                if (text := each.pop(name, None)) is None:
                    continue
                with suppress(ValueError, RecursionError):
                    each[name] = meta_json.from_text(text)
    return states
