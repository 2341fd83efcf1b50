"""Who is online, straight from Redis, for programs that are no server::

    from presence.reader import PresenceReader

    with PresenceReader("redis://localhost:6379") as reader:
        print(reader.count(), "online")
        print(reader.states(["ann", "bob"])["ann"]["status"])
        for page in reader.pages():
            print(*page.states)

Its calls block. In an asynchronous program a thread makes them, of which redis-py's client can bear several
at once::

    states = await trio.to_thread.run_sync(reader.states, uids)
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from presence.store.nodes import NodeState, ended_leases, read_nodes

PAGE_USERS = 1000  # some 300 KB, in well under a millisecond of Redis' time
_CURSOR = re.compile(r"(\d{1,9})-(\d{1,20})", re.ASCII)
State = dict[str, Any]


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

    Every call may be made from any thread, and raises `RedisError` when Redis cannot answer: nothing is
    tried again. A connection whose call failed is closed.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; nothing is sent yet.
        prefix: what the server's keys begin with.

    Raises:
        ValueError: the URL's scheme or form is not known; of later calls: what Redis holds is no data of a
            presence server.
    """

    def __init__(self, url: str, *, prefix: str = "presence") -> None:
        self._client = open_client(url)
        self._prefix = prefix

    def states(self, uids: Iterable[str]) -> dict[str, State]:
        """Return the state of each user, in the order of `uids`; see `read_states`."""
        return read_states(self._client, self.keys(), uids)

    def state(self, uid: str) -> State:
        """Return the state of one user."""
        return self.states([uid])[uid]

    def count(self) -> int:
        """Return how many users are online, as of about one moment for all shards.

        Those of nodes that are silent are among them: nobody has told that they are gone.
        """
        keys = self.keys()
        with self._client.pipeline(transaction=False) as pipe:
            for shard in range(keys.shards):
                pipe.hlen(keys.online(shard))
            return sum(pipe.execute())

    def page(self, cursor: str | None = None, *, size: int = PAGE_USERS) -> Page:
        """Return some of those who are online, and where to go on.

        Whoever is online from the first page to the last is in one of them; whoever comes or goes meanwhile
        may be or not. A user may be in two pages. No order. The pages of a view that is exact are a
        snapshot: see `presence.subscriber.follow`.

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
        answer: Any = self._client.hscan(keys.online(shard), position, count=size)
        position, records = answer
        if not position:
            shard += 1
        states = {
            uid.decode("utf-8", "backslashreplace"): state
            for uid, record in records.items()
            if (state := _online(record))
        }
        _mark_unknown(self._client, keys, states.values())
        return Page(states, f"{shard}-{position}" if shard < keys.shards else None)

    def pages(self, *, size: int = PAGE_USERS) -> Iterator[Page]:
        """Return all pages, one after the other: never more than one is held in memory."""
        page = self.page(size=size)
        yield page
        while page.cursor is not None:
            page = self.page(page.cursor, size=size)
            yield page

    def nodes(self) -> list[NodeState]:
        """Return all nodes, by id, as they told of themselves when they renewed their lease last."""
        return read_nodes(self._client, Keys(self._prefix))

    def keys(self) -> Keys:
        """Return how keys are called, and over how many shards the users are spread."""
        return Keys(self._prefix, stored_shards(self._client, self._prefix) or 1)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def stored_shards(client: Redis, prefix: str) -> int | None:
    """Return how many shards the data below `prefix` is spread over, or None where no server wrote yet.

    Raises:
        ValueError: what is stored is not a number of shards.
    """
    stored = client.hget(Keys(prefix).meta, "shards")
    if stored is None:
        return None
    if not (isinstance(stored, bytes) and stored.isdigit() and int(stored) > 0):
        raise ValueError(f"{Keys(prefix).meta}: {stored!r} is not a number of shards")
    return int(stored)


def read_states(client: Redis, keys: Keys, uids: Iterable[str]) -> dict[str, State]:
    """Return the state of each user, in the order of `uids`.

    A state is ``{status, since_ms, last_seen_ms, id, sessions}``. `status` is ``online``, ``offline`` or
    ``unknown``; a user that nobody has heard of is offline. Online: `since_ms` and `id` (the entry id) are
    those of the online event, `last_seen_ms` is None, `sessions` a list of ``{device, session, node,
    login_ms}`` by device. Unknown: the same, but the leases of all nodes of his sessions have ended. They
    come back, or others sweep them, and he is offline. Offline: only `last_seen_ms` may be known. Times are
    Unix milliseconds.

    It is one round trip, and a second one if anybody is online.
    """
    wanted = list(dict.fromkeys(uids))
    by_shard: dict[int, list[str]] = {}
    for uid in wanted:
        by_shard.setdefault(keys.shard(uid), []).append(uid)
    # One transaction: a user who goes or comes between the two reads must not look like a stranger.
    with client.pipeline(transaction=True) as pipe:
        for shard, members in by_shard.items():
            pipe.hmget(keys.online(shard), members)
            pipe.zmscore(keys.seen(shard), members)
        answers = iter(pipe.execute())
    states: dict[str, State] = {}
    for members in by_shard.values():
        for uid, record, score in zip(members, next(answers), next(answers), strict=True):
            states[uid] = _online(record) or _offline(score)
    _mark_unknown(client, keys, states.values())
    return {uid: states[uid] for uid in wanted}


def _mark_unknown(client: Redis, keys: Keys, states: Collection[State]) -> None:
    """Change the status of users online whose nodes are all silent."""
    ended = ended_leases(client, keys, (each["node"] for state in states for each in state["sessions"]))
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
