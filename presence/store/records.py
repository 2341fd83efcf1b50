"""The records of users, as readers see them.

Tests: `tests/store/test_rules.py`, `tests/subscriber/test_reader.py`.
"""

import json
import math
import re
from collections.abc import Collection, Iterable
from typing import Any, Final

from presence.common.loop_calls import Pacer
from presence.protocol.constants import STATUSES, Code, Status
from presence.store.error_classes import CONNECTION_LOST, code_of, of_another_type, passes
from presence.store.keys import Keys
from presence.store.node_states import ended_leases
from presence.store.redis_client import ResponseError
from presence.store.shard_clients import ShardClients
from presence.store.user_filter import ALL_USERS, UserFilter

State = dict[str, Any]
_SHARDS: Final = re.compile(rb"[1-9]\d{0,4}")  # the setting has at most 16,384
_LEFT: Final = re.compile(rb"(\d{1,15}) (\d{1,15})-(\d{1,15}) (-?\d{1,15})(?: ([^+]*?))?(?: \+([il]+))?")
_PUBLIC: Final = re.compile(r"(\d{1,15}) (\d{1,15}-\d{1,15}) (\d{1,15}) (\d{1,15})", re.ASCII)


def stored_shards(clients: ShardClients, prefix: str) -> int | None:
    """Return the number of shards of the data below `prefix`, or None if no server has written yet.

    `ValueError` if the stored value is not a number of shards.
    """
    meta = Keys(prefix).meta
    try:
        return number_of_shards(meta, clients.at(meta).hget(meta, "shards"))
    except ResponseError as error:
        if code_of(error) == "WRONGTYPE":
            raise of_another_type([meta]) from error
        raise


def number_of_shards(key: str, stored: object) -> int | None:
    """Return the number of shards that is stored at a key; None if nothing is.

    `ValueError` if it is not one. Servers write it again once the key is deleted.
    """
    if stored is None:
        return None
    if not (isinstance(stored, bytes) and _SHARDS.fullmatch(stored)):
        raise ValueError(f"{key}: {stored!r} is not a number of shards: redis-cli DEL {key}")
    return int(stored)


def read_states(
    clients: ShardClients, keys: Keys, uids: Iterable[str], *, for_clients: bool = False
) -> dict[str, State]:
    """Return the state of each user, in the order of `uids`.

    A state is ``{status, since_ms, last_seen_ms, id, sessions}`` and, where there are any, `meta`, `private`,
    ``invisible: True`` and ``hide: ["last_seen"]``, if clients are shown no times of the user. `status` is
    that of `online_state`, ``offline`` or ``unknown``; a user without any data is offline. Unknown: the same,
    but the leases of all nodes of the sessions have expired. Those nodes return, or others sweep them and the
    user goes offline. (While the server of a cluster with the lease table is unreachable, such a user counts
    as online.) Offline: what is not known of the last event is None, and there is its `reason`, if it is
    known. Of one who is invisible, or was at the end, `public` is the state that clients are shown. Times are
    Unix milliseconds.

    This takes one round trip, and a second one if any user is online; `for_clients`: any who is not
    invisible, because the time would tell an invisible user from one who is offline. In a cluster it takes
    one per shard, because a transaction cannot span shards.
    """
    wanted = list(dict.fromkeys(uids))
    by_shard: dict[int, list[str]] = {}
    for uid in wanted:
        by_shard.setdefault(keys.shard(uid), []).append(uid)

    def fill(pipe: Any, shard: int) -> None:
        pipe.hmget(keys.online(shard), by_shard[shard])
        pipe.zmscore(keys.seen(shard), by_shard[shard])
        pipe.hmget(keys.left(shard), by_shard[shard])

    # One transaction: a user who goes online or offline between the two reads must not look unknown.
    answers = clients.ask(keys, by_shard, fill, is_atomic=True)
    states: dict[str, State] = {}
    pacer = Pacer()
    for shard, members in by_shard.items():
        for uid, record, score, left in zip(members, *answers[shard], strict=True):
            pacer.note(len(record or b""))
            states[uid] = online_state(record) or offline_state(score, left)
    shown = [state for state in states.values() if not (for_clients and "public" in state)]
    _mark_unknown(clients, keys, shown)
    return {uid: states[uid] for uid in wanted}


def count_online(clients: ShardClients, keys: Keys) -> int:
    answers = clients.ask(keys, range(keys.shards), lambda pipe, shard: pipe.hlen(keys.online(shard)))
    return sum(online for (online,) in answers.values())


def read_page(
    clients: ShardClients,
    keys: Keys,
    shard: int,
    position: int,
    size: int,
    *,
    wanted: UserFilter = ALL_USERS,
) -> tuple[dict[str, State], int, int]:
    """Return the states of some online users of a shard, and the shard and position of the next page.

    A failed page may be read again. Position 0 is the beginning of a shard. Redis looks at some `size` users,
    of which those are returned that are wanted.
    """
    key = keys.online(shard)
    answer: Any = clients.at(key).hscan(key, position, match=wanted.pattern, count=size)
    position, records = answer
    if not position:
        shard += 1
    states = {
        uid.decode("utf-8", "backslashreplace"): state
        for uid, record in records.items()
        if wanted.may_match(record) and (state := online_state(record)) and wanted.has_session(state)
    }
    _mark_unknown(clients, keys, states.values())
    return {uid: state for uid, state in states.items() if wanted.has_status(state)}, shard, position


def _mark_unknown(clients: ShardClients, keys: Keys, states: Collection[State]) -> None:
    """Set the status of users to unknown if the leases of all their nodes have expired."""
    try:
        ended = ended_leases(clients, keys, (each["node"] for state in states for each in state["sessions"]))
    except CONNECTION_LOST as error:
        if not (clients.is_cluster and passes(error)):
            raise
        clients.invalidate(keys.nodes)
        return
    for state in states:
        if state["sessions"] and all(each["node"] in ended for each in state["sessions"]):
            state["status"] = "unknown"


def online_state(text: bytes | None) -> State | None:
    """Return the state in a record; None if there is no record, or it is damaged.

    The status is the first of `presence.protocol.constants.STATUSES` that a session has; an invisible user
    is online, with ``invisible: True``, and `public` is what clients are shown. `since_ms` is the start of
    that status, `id` the entry id of the event that led to the state, `last_seen_ms` None. `meta` and
    `private` are JSON texts, see `presence.common.meta_json`: of the sessions with that status, those of the
    latest login. `sessions` is a list of ``{device, session, node, login_ms}`` by device; one that is away
    has ``away: True``, one with another status than online a `status`, and one that has them, its own `meta`,
    `private`, `class` and `rooms`. `rooms` of the state are those of all sessions; both are sorted lists.
    """
    try:
        record = json.loads(text or b"null")
        sessions = [_session(device, each) for device, each in sorted(record["sessions"].items())]
        shown_since = record.get("state")
        if not isinstance(shown_since, dict) or not {"id", "since_ms"} <= shown_since.keys():
            shown_since = record
        since_ms, entry_id = int(shown_since["since_ms"]), str(shown_since["id"])
        public, privacy = record.get("public"), record.get("privacy")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if not sessions:
        return None
    shown = max(sessions, key=_precedence)
    state = _state(status_of(shown), since_ms, None, entry_id, sessions)
    if state["status"] == "invisible":
        state |= {"status": "online", "invisible": True, "public": public_state(public)}
    state |= _hidden(privacy if isinstance(privacy, str) else "")
    state |= {name: shown[name] for name in ("meta", "private") if name in shown}
    rooms = sorted({room for each in sessions for room in each.get("rooms", ())})
    return {**state, "rooms": rooms} if rooms else state


def _session(device: str, fields: dict[str, Any]) -> State:
    session = {
        "device": device,
        "session": _text(fields["session"]),
        "node": _text(fields["node"]),
        "login_ms": int(fields["login_ms"]),
    }
    if fields.get("away") is True:
        session["away"] = True
    elif (status := fields.get("status")) in {"busy", "dnd", "invisible"}:
        session["status"] = status
    for name in ("meta", "private", "class"):
        if isinstance(text := fields.get(name), str):
            session[name] = text
    if isinstance(text := fields.get("rooms"), str) and (rooms := sorted({*_text(text).split(" ")} - {""})):
        session["rooms"] = rooms
    return session


def _text(value: str) -> str:
    """Return a text; `TypeError` or `ValueError` for anything that cannot be part of a key."""
    return str.encode(value).decode()


def _precedence(session: State) -> tuple[int, int, bytes]:
    """Return the sort key that decides which of several sessions is shown; see lib/shown_state.lua."""
    rank = -STATUSES.index(status_of(session))
    return rank, session["login_ms"], session["device"].encode("utf-8", "surrogatepass")


def status_of(session: State) -> Status:
    status: Status = "away" if "away" in session else session.get("status", "online")
    return status


def offline_state(score: float | None, left: bytes | None) -> State:
    """Return the state of a user without a record.

    Args:
        score: when the user was last seen, Unix milliseconds; None: not known.
        left: of the last offline event, see `Keys.left`; None: not known.
    """
    last_seen_ms = int(score) if score is not None and math.isfinite(score) else None
    found = _LEFT.fullmatch(left or b"")
    if found is None:
        return _state("offline", None, last_seen_ms, None, [])
    code, id_ms, id_number, since = map(int, found.groups()[:4])
    state = _offline(code, f"{id_ms}-{id_number}", id_ms + since, last_seen_ms)
    if (public := found[5]) is not None:
        state |= {"invisible": True, "public": public_state(public.decode("utf-8", "replace"))}
    return state | _hidden((found[6] or b"").decode())


def _hidden(privacy: str) -> State:
    """Return what a state says of the things that its user hides; see lib/profile.lua."""
    return {"hide": ["last_seen"]} if "l" in privacy else {}


def public_state(text: object) -> State:
    """Return how an invisible user is shown to clients: offline, as `public` of a record says."""
    found = _PUBLIC.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return _state("offline", None, None, None, [])
    code, entry_id, since_ms, last_seen_ms = found.groups()
    return _offline(int(code), entry_id, int(since_ms), int(last_seen_ms))


def _offline(code: int, entry_id: str, since_ms: int, last_seen_ms: int | None) -> State:
    state = _state("offline", since_ms, last_seen_ms, entry_id, [])
    return {**state, "reason": Code(code).reason} if code in list(Code) else state


def _state(
    status: str, since_ms: int | None, last_seen_ms: int | None, entry_id: str | None, sessions: list[State]
) -> State:
    state = {"status": status, "since_ms": since_ms, "last_seen_ms": last_seen_ms}
    return {**state, "id": entry_id, "sessions": sessions}
