"""Who is online, straight from Redis, for programs that are no server::

    from presence.reader import PresenceReader

    with PresenceReader("redis://localhost:6379") as reader:
        print(reader.count(), "online")
        print(reader.states(["ann", "bob"])["ann"]["status"])
        for page in reader.pages():
            print(*page.states)

Its calls block. In an asynchronous program a thread makes them; there may be several at once::

    states = await trio.to_thread.run_sync(reader.states, uids)
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from presence.store.access import Access
from presence.store.client import RedisError
from presence.store.failures import is_elsewhere
from presence.store.keys import Keys
from presence.store.nodes import NodeState, ended_leases, read_nodes

PAGE_USERS = 1000  # some 300 KB, in well under a millisecond of Redis' time
_CURSOR = re.compile(r"(\d{1,9})-(\d{1,20})", re.ASCII)
State = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """Some of those who are online.

    Attributes:
        states: uid to state, as `read_states` gives it; it may be empty though more pages follow.
        cursor: what to give for the next page; None after the last one.
    """

    states: dict[str, State]
    cursor: str | None


class PresenceReader:
    """Reads states, counts and pages of a presence server's users from its Redis.

    Every call may be made from any thread, and raises `RedisError` when Redis cannot answer. A connection
    whose call failed is closed. On one Redis nothing is tried again. In a cluster a call that found a shard's
    server gone is made once more, of whoever serves now.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``redis+cluster://``, see `presence.store.address`;
            nothing is sent yet.
        prefix: what the server's keys begin with.

    Raises:
        ValueError: the URL's scheme or form is not known; of later calls: what Redis holds is no data of a
            presence server.
    """

    def __init__(self, url: str, *, prefix: str = "presence") -> None:
        self._access = Access(url)
        self._prefix = prefix

    def states(self, uids: Iterable[str]) -> dict[str, State]:
        """Return the state of each user, in the order of `uids`; see `read_states`."""
        wanted = list(uids)
        return self._read(lambda access: read_states(access, self._keys(), wanted))

    def state(self, uid: str) -> State:
        """Return the state of one user."""
        return self.states([uid])[uid]

    def count(self) -> int:
        """Return how many users are online, as of about one moment for all shards.

        Those of nodes that are silent are among them: nobody has told that they are gone.
        """
        return self._read(lambda access: _count(access, self._keys()))

    def page(self, cursor: str | None = None, *, size: int = PAGE_USERS) -> Page:
        """Return some of those who are online, and where to go on.

        Whoever is online from the first page to the last is in one of them, unless another Redis goes on
        meanwhile (a restart, a failover); whoever comes or goes meanwhile may be or not. A user may be in two
        pages. No order. The pages of a view that is exact are a snapshot: see `presence.subscriber.follow`.

        Args:
            cursor: of the page before; None for the first one.
            size: how many users, roughly; a small shard comes whole.

        Raises:
            ValueError: the cursor is none that a page gave.
        """
        found = _CURSOR.fullmatch(cursor or "0-0")
        keys = self.keys()
        if not found or int(found[1]) >= keys.shards:
            raise ValueError(f"{cursor!r} is not the cursor of a page")
        shard, position = int(found[1]), int(found[2])
        return self._read(lambda access: _page(access, keys, shard, position, size))

    def pages(self, *, size: int = PAGE_USERS) -> Iterator[Page]:
        """Return all pages, one after the other: never more than one is held in memory."""
        page = self.page(size=size)
        yield page
        while page.cursor is not None:
            page = self.page(page.cursor, size=size)
            yield page

    def nodes(self) -> list[NodeState]:
        """Return all nodes, by id, as they told of themselves when they renewed their lease last."""
        return self._read(lambda access: read_nodes(access, Keys(self._prefix)))

    def keys(self) -> Keys:
        """Return how keys are called, and over how many shards the users are spread."""
        return self._read(lambda _access: self._keys())

    def close(self) -> None:
        """Close the connections."""
        self._access.close()

    def _keys(self) -> Keys:
        return Keys(self._prefix, stored_shards(self._access, self._prefix) or 1)

    def _read(self, read: Callable[[Access], T]) -> T:
        """Read, and in a cluster once more if it may be somewhere else by now: reads may be repeated."""
        try:
            return read(self._access)
        except RedisError as error:
            if not (self._access.is_cluster and is_elsewhere(error)):
                raise
            self._access.doubt()
        return read(self._access)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def stored_shards(access: Access, prefix: str) -> int | None:
    """Return how many shards the data below `prefix` is spread over, or None where no server wrote yet.

    Raises:
        ValueError: what is stored is not a number of shards.
    """
    meta = Keys(prefix).meta
    stored = access.at(meta).hget(meta, "shards")
    if stored is None:
        return None
    if not (isinstance(stored, bytes) and stored.isdigit() and int(stored) > 0):
        raise ValueError(f"{meta}: {stored!r} is not a number of shards")
    return int(stored)


def read_states(access: Access, keys: Keys, uids: Iterable[str]) -> dict[str, State]:
    """Return the state of each user, in the order of `uids`.

    A state is ``{status, since_ms, last_seen_ms, id, sessions}``. `status` is ``online``, ``offline`` or
    ``unknown``; a user that nobody has heard of is offline. Online: `since_ms` and `id` (the entry id) are
    those of the online event, `last_seen_ms` is None, `sessions` a list of ``{device, session, node,
    login_ms}`` by device. Unknown: the same, but the leases of all nodes of his sessions have ended. They
    come back, or others sweep them, and he is offline. Offline: only `last_seen_ms` may be known. Times are
    Unix milliseconds.

    It is one round trip, and a second one if anybody is online. In a cluster each shard asked is a round
    trip, for a transaction cannot be over several.
    """
    wanted = list(dict.fromkeys(uids))
    by_shard: dict[int, list[str]] = {}
    for uid in wanted:
        by_shard.setdefault(keys.shard(uid), []).append(uid)

    def fill(pipe: Any, shard: int) -> None:
        pipe.hmget(keys.online(shard), by_shard[shard])
        pipe.zmscore(keys.seen(shard), by_shard[shard])

    # One transaction: a user who goes or comes between the two reads must not look like a stranger.
    answers = access.ask(keys, by_shard, fill, is_atomic=True)
    states: dict[str, State] = {}
    for shard, members in by_shard.items():
        for uid, record, score in zip(members, *answers[shard], strict=True):
            states[uid] = _online(record) or _offline(score)
    _mark_unknown(access, keys, states.values())
    return {uid: states[uid] for uid in wanted}


def _count(access: Access, keys: Keys) -> int:
    answers = access.ask(keys, range(keys.shards), lambda pipe, shard: pipe.hlen(keys.online(shard)))
    return sum(online for (online,) in answers.values())


def _page(access: Access, keys: Keys, shard: int, position: int, size: int) -> Page:
    key = keys.online(shard)
    answer: Any = access.at(key).hscan(key, position, count=size)
    position, records = answer
    if not position:
        shard += 1
    states = {
        uid.decode("utf-8", "backslashreplace"): state
        for uid, record in records.items()
        if (state := _online(record))
    }
    _mark_unknown(access, keys, states.values())
    return Page(states, f"{shard}-{position}" if shard < keys.shards else None)


def _mark_unknown(access: Access, keys: Keys, states: Collection[State]) -> None:
    """Change the status of users online whose nodes are all silent."""
    ended = ended_leases(access, keys, (each["node"] for state in states for each in state["sessions"]))
    for state in states:
        if state["sessions"] and all(each["node"] in ended for each in state["sessions"]):
            state["status"] = "unknown"


def _online(text: bytes | None) -> State | None:
    """Return the state that a record tells; as for the store, one that is damaged counts as absent."""
    try:
        record = json.loads(text or b"null")
        sessions = [
            {
                "device": device,
                "session": session["session"],
                "node": session["node"],
                "login_ms": int(session["login_ms"]),
            }
            for device, session in sorted(record["sessions"].items())
        ]
        since_ms, entry_id = int(record["since_ms"]), str(record["id"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return _state("online", since_ms, None, entry_id, sessions) if sessions else None


def _offline(last_seen_ms: float | None) -> State:
    return _state("offline", None, None if last_seen_ms is None else int(last_seen_ms), None, [])


def _state(
    status: str, since_ms: int | None, last_seen_ms: int | None, entry_id: str | None, sessions: list[State]
) -> State:
    return {
        "status": status,
        "since_ms": since_ms,
        "last_seen_ms": last_seen_ms,
        "id": entry_id,
        "sessions": sessions,
    }
