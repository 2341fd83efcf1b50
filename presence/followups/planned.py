"""Follow-ups of single users: adding, cancelling and listing."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import msgpack

from presence.common.errors import StoreError
from presence.config.followup_rules import MAX_AFTER_S, MAX_NAME_CHARS, MAX_PAYLOAD_BYTES, is_name
from presence.followups.script_calls import Addition, add_call, cancel_call, script_keys
from presence.protocol.schema import uid_complaint
from presence.store.keys import Keys
from presence.store.script_runner import Call, Scripting
from presence.store.shard_job import stored_number_of_shards
from presence.timers.interface import MAX_ID_BYTES, TimerError, TimerFull

PAGE_SIZE: Final = 500  # follow-ups, roughly
_ARMED: Final = 0


@dataclass(frozen=True, slots=True)
class PlannedFollowUp:
    """A pending follow-up."""

    id: str
    name: str  # of its rule, or as added
    uid: str
    due_ms: int | None  # Unix ms by Redis' clock; None: armed, the user is online
    after_s: float  # delay after the user went offline
    payload: str  # for the consumer
    reason: str  # of the offline event that it follows; "" if unknown
    offline_id: str  # the entry id of that event, or ""


@dataclass(frozen=True, slots=True)
class Added:
    """The result of an `add`."""

    id: str  # of the follow-up
    is_new: bool  # False: it existed before
    due_ms: int | None  # see `PlannedFollowUp`


class FollowUps:
    """Blocking calls, made from one thread at a time; all raise `StoreUnavailable` or `StoreError`.

    `url` is as `presence.common.redis_url` takes it, `prefix` that of the server's keys; nothing is sent yet.
    """

    def __init__(self, url: str, *, prefix: str = "presence") -> None:
        self._scripting = Scripting(url)
        self._prefix = prefix
        self._shards: int | None = None

    def add(self, uid: str, *, after: float, name: str, payload: str = "", key: str = "") -> Added:
        """Add a follow-up, due `after` seconds after the user went offline, unless the user comes back.

        If the user is offline, the time counts from now; if online, from the next offline event. It is for
        once: the user's return cancels it. (For a follow-up of every offline event, use a rule in the
        settings.)

        Args:
            uid: the user.
            after: seconds, to the millisecond.
            name: of the action: letters, digits and ``._-``.
            payload: text for the consumer, at most `MAX_PAYLOAD_BYTES` bytes.
            key: makes the call repeatable, as after a failure: it adds nothing while the first one is
                pending; no colon, and unique for each uid and name.

        Raises:
            TimerError: a limit is broken.
            TimerFull: there are too many, of this user or in all.
        """
        _check(uid, after, name, payload, key)
        followup_id = f"{name}:{uid}:{key or secrets.token_hex(8)}"
        if len(followup_id.encode()) > MAX_ID_BYTES:
            raise TimerError(f"name, uid and key are longer than {MAX_ID_BYTES} bytes")
        what = Addition(followup_id, uid, name, after, payload)
        status, *rest = self._one(add_call(self._keys(), what))
        if status == "full":
            raise TimerFull(f"there are {rest[0]} follow-ups already")
        is_new, due_ms = rest
        return Added(followup_id, bool(is_new), int(due_ms) or None)

    def cancel(self, followup_id: str) -> bool:
        """Remove a pending follow-up; return whether it existed. One already in the stream stays."""
        uid = _uid_of(followup_id)
        keys = self._keys()
        return bool(self._one(cancel_call(keys, keys.shard(uid), [uid], followup_id))[1])

    def cancel_of(self, uid: str) -> int:
        """Remove all pending follow-ups of a user, also armed ones; return their number."""
        keys = self._keys()
        return int(self._one(cancel_call(keys, keys.shard(uid), [uid]))[1])

    def of(self, uid: str) -> list[PlannedFollowUp]:
        """Return the pending follow-ups of a user, in the order of adding."""
        keys = self._keys()
        shard = keys.shard(uid)
        of_key = script_keys(keys, shard)[6]
        (packed,) = self._scripting.commands(of_key, [("HGET", of_key, uid)])
        return self._read(keys, shard, msgpack.unpackb(packed, raw=True) if packed else [])

    def earliest(self, limit: int = PAGE_SIZE) -> list[PlannedFollowUp]:
        """Return those due first, of all users; armed ones come last."""
        keys = self._keys()
        found: list[PlannedFollowUp] = []
        for shard in range(keys.shards):
            due_key = script_keys(keys, shard)[1]
            (ids,) = self._scripting.commands(due_key, [("ZRANGE", due_key, 0, limit - 1)])
            for first in range(0, len(ids), PAGE_SIZE):
                found += self._read(keys, shard, ids[first : first + PAGE_SIZE])
        return sorted(found, key=lambda each: (each.due_ms is None, each.due_ms or 0, each.id))[:limit]

    def pages(self) -> Iterator[list[PlannedFollowUp]]:
        """Return all in pages, in no order; one pending from the first page to the last is in one of them."""
        keys = self._keys()
        for shard in range(keys.shards):
            work_key, position = script_keys(keys, shard)[0], b"0"
            while True:
                command = ("HSCAN", work_key, position, "COUNT", PAGE_SIZE)
                ((position, flat),) = self._scripting.commands(work_key, [command])
                yield _pending(_pairs(flat))
                if int(position) == 0:
                    break

    def close(self) -> None:
        """Close the connections."""
        self._scripting.close()

    def _keys(self) -> Keys:
        if self._shards is None:
            self._shards = stored_number_of_shards(self._scripting, self._prefix)
            if self._shards is None:
                raise StoreError(f"no server has written there yet: {Keys(self._prefix).meta} is not set")
        return Keys(self._prefix, self._shards)

    def _one(self, call: Call) -> list[Any]:
        answer: list[Any] = msgpack.unpackb(self._scripting.one(call))
        return answer

    def _read(self, keys: Keys, shard: int, ids: list[bytes]) -> list[PlannedFollowUp]:
        if not ids:
            return []
        work_key = script_keys(keys, shard)[0]
        (found,) = self._scripting.commands(work_key, [("HMGET", work_key, *ids)])
        return _pending((name, packed) for name, packed in zip(ids, found, strict=True) if packed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(uid: str, after: float, name: str, payload: str, key: str) -> None:
    if complaint := uid_complaint(uid):
        raise TimerError(f"uid {complaint}")
    if any("\ud800" <= c <= "\udfff" for text in (payload, key) for c in text):
        raise TimerError("payload and key must be text that UTF-8 can hold")
    if not is_name(name):
        raise TimerError(f"name must be 1 to {MAX_NAME_CHARS} letters, digits and ._-")
    if not 0 <= after <= MAX_AFTER_S:
        raise TimerError(f"after must be a number from 0 to {MAX_AFTER_S:,.0f} s")
    if len(payload.encode()) > MAX_PAYLOAD_BYTES:
        raise TimerError(f"payload must be at most {MAX_PAYLOAD_BYTES:,} bytes")
    if ":" in key or not (not key or key.isprintable()):
        raise TimerError("key must be printable and hold no colon")


def _uid_of(followup_id: str) -> str:
    """Return the user of an id, ``name:uid:rest``; names and rests have no colon."""
    uid, colon, _ = followup_id.partition(":")[2].rpartition(":")
    if not colon or uid_complaint(uid):
        raise TimerError(f"{followup_id!r} is not the id of a follow-up")
    return uid


def _pairs(flat: Any) -> Iterator[tuple[bytes, bytes]]:
    if isinstance(flat, dict):
        return iter(flat.items())
    return zip(flat[::2], flat[1::2], strict=True)


def _pending(rows: Any) -> list[PlannedFollowUp]:
    """Return follow-ups from rows of `work`; see prelude.lua. Damaged ones are skipped."""
    found = []
    for followup_id, packed in rows:
        try:
            item = msgpack.unpackb(packed, raw=True)
            due_ms, _, payload, uid, name, after_ms, _, reason, _, offline_id, *_ = item
            pending = PlannedFollowUp(
                _text(followup_id),
                _text(name),
                _text(uid),
                None if due_ms == _ARMED else int(due_ms),
                after_ms / 1000,
                _text(payload),
                _text(reason),
                _text(offline_id),
            )
        except (ValueError, AttributeError, TypeError):
            continue
        found.append(pending)
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
