"""Reads for watches and queries: of the records of users, and of the stream."""

import math
import time
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any, Final

from presence.common.loop_calls import Pacer
from presence.store.error_classes import as_failure, passes
from presence.store.keys import Keys
from presence.store.records import offline_state, online_state, read_states, status_of
from presence.store.redis_client import Redis, RedisError, ResponseError
from presence.store.shard_clients import ShardClients
from presence.watching.channel import Replay
from presence.watching.user_states import (
    NO_ENTRY,
    EntryId,
    ShardSnapshot,
    UserEvent,
    WatchedDevice,
    WatchedState,
    bounded,
    id_of,
    id_text,
    read_entry,
)

# So much before the retention ends, clients are no longer told when a user was last seen. Scripts forget
# offline users later, by the clock of Redis. So invisible and offline users look alike, whichever clock is
# ahead.
FORGOTTEN_EARLIER_MS: Final = 3_600_000
REPLAY_PAGE: Final = 200  # entries; some 60 KB, which the loop parses in four milliseconds
_NO_KEY: Final = "no such key"


class StoredStates:
    """The states of users in Redis, for queries: see `presence.watching.queries.States`.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        keys: key names.
        retention_ms: for how long clients can see when an offline user was last seen.
    """

    def __init__(self, url: str, keys: Keys, *, retention_ms: float = math.inf) -> None:
        self._clients = ShardClients(url)
        self._keys = keys
        self._retention_ms = retention_ms

    def read(self, uids: Sequence[str], *, detail: bool = False) -> Mapping[str, WatchedState]:
        """Return the state of each user; in a cluster with a second try, because a shard may have moved."""
        try:
            found = self._clients.read(
                lambda clients: read_states(clients, self._keys, uids, for_clients=True)
            )
        except (RedisError, OSError) as error:
            raise as_failure(error) from error
        forgotten_ms = forgotten_before_ms(self._retention_ms)
        states, pacer = {}, Pacer()
        for uid, each in found.items():
            pacer.note()
            states[uid] = _state(each, forgotten_ms)._replace(devices=_devices(each) if detail else None)
        return states

    def close(self) -> None:
        """Close the connections for good."""
        self._clients.close()


def forgotten_before_ms(retention_ms: float) -> float:
    """Return the Unix milliseconds before which it is not told any more when a user was last seen."""
    return time.time() * 1000 - retention_ms + FORGOTTEN_EARLIER_MS


def read_snapshot(
    client: Redis,
    keys: Keys,
    shard: int,
    uids: Sequence[str],
    *,
    detail: bool = False,
    forgotten_ms: float = -math.inf,
) -> ShardSnapshot:
    """Read users of one shard, with `detail` also their devices, in one transaction.

    `forgotten_ms`: see `forgotten_before_ms`.
    """
    with client.pipeline(transaction=True) as pipe:
        pipe.hmget(keys.online(shard), list(uids))
        pipe.zmscore(keys.seen(shard), list(uids))
        pipe.hmget(keys.left(shard), list(uids))
        pipe.xinfo_stream(keys.events(shard))
        records, scores, lefts, stream = _answers(pipe)
    states, pacer = {}, Pacer()
    for uid, record, score, left in zip(uids, records, scores, lefts, strict=True):
        pacer.note(len(record or b""))
        found = online_state(record) or offline_state(score, left)
        states[uid] = _state(found, forgotten_ms)._replace(devices=_devices(found) if detail else None)
    return ShardSnapshot(states, _last_id(stream))


def read_replay(client: Redis, keys: Keys, shard: int, after: EntryId, uids: Container[str]) -> Replay:
    """Read part of the stream after an entry."""
    key = keys.events(shard)
    with client.pipeline(transaction=True) as pipe:
        pipe.xinfo_stream(key)
        pipe.xrange(key, f"({id_text(after)}", "+", count=REPLAY_PAGE)
        stream, page = _answers(pipe)
    last, first = _last_id(stream), _first_id(stream)
    is_short = last > after and (first is None or first > after)
    if last < after or is_short:
        return Replay((), after, 0, is_end=False, is_broken=True)
    entries = [
        entry
        for entry_id, fields in page
        if fields.get(b"uid", b"").decode("utf-8", "replace") in uids
        and (entry := _entry(entry_id, fields)) is not None
    ]
    is_end = len(page) < REPLAY_PAGE
    return Replay(entries, last if is_end else id_of(page[-1][0].decode()), len(page), is_end=is_end)


def read_last_ids(client: Redis, keys: Keys, shards: Sequence[int]) -> list[EntryId | RedisError] | None:
    """Return the id of the last entry of each shard, or the error instead; None if this is no primary."""
    with client.pipeline(transaction=False) as pipe:
        pipe.info("replication")
        for shard in shards:
            pipe.xinfo_stream(keys.events(shard))
        replication, *streams = pipe.execute(raise_on_error=False)
    if isinstance(replication, Exception):
        raise replication
    if replication.get("role") != "master":
        return None
    return [
        each if isinstance(each, RedisError) else _last_id(each)
        for each in (None if _is_missing(stream) else stream for stream in streams)
    ]


def _answers(pipe: Any) -> list[Any]:
    """Return the answers of a pipeline, with None for a stream that does not exist yet."""
    answers = [None if _is_missing(each) else each for each in pipe.execute(raise_on_error=False)]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _is_missing(answer: object) -> bool:
    return isinstance(answer, ResponseError) and _NO_KEY in str(answer) and not passes(answer)


def _last_id(stream: Mapping[str, Any] | None) -> EntryId:
    return NO_ENTRY if stream is None else id_of(stream["last-generated-id"].decode())


def _first_id(stream: Mapping[str, Any] | None) -> EntryId | None:
    first = None if stream is None else stream["first-entry"]
    return None if first is None else id_of(first[0].decode())


def _entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> UserEvent | None:
    text = partial(bytes.decode, encoding="utf-8", errors="backslashreplace")
    return read_entry(text(entry_id), {text(name): text(value) for name, value in fields.items()})


def _devices(found: Mapping[str, Any]) -> tuple[WatchedDevice, ...]:
    """Return the devices that clients are shown: none of an invisible user."""
    return bounded(
        tuple(
            WatchedDevice(
                each["device"], status_of(each), each["login_ms"], each.get("class", ""), each.get("meta", "")
            )
            for each in found.get("public", found)["sessions"]
        )
    )


def _state(found: Mapping[str, Any], forgotten_ms: float) -> WatchedState:
    found = found.get("public", found)
    if (last_seen_ms := found["last_seen_ms"]) is not None and last_seen_ms < forgotten_ms:
        found = offline_state(None, None)
    return WatchedState(
        found["status"],
        found["since_ms"],
        found["last_seen_ms"],
        found["id"] or "",
        found.get("meta") or "",
        found.get("reason", ""),
        hides_times="hide" in found,
    )
