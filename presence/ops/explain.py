"""Collects everything known about a user: the nodes holding sessions, since when, and why.

::

    from presence.ops.explain import Explainer

    with Explainer("redis://localhost:6379") as explainer:
        print(explainer.explain("ann")["why"])

Redis has the user's state and the event that led to it; nodes are asked for their sessions of the user. A
caller that can reach some nodes directly passes their answers in, even while Redis is unreachable.

Tests: `tests/cli/test_explanation.py`, `tests/cli/test_explain.py`.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self

from presence.common.redaction import redact_text
from presence.common.text import plain_state
from presence.ops import explain_text
from presence.protocol.schema import uid_complaint
from presence.reader import PresenceReader
from presence.store.ban_table import StoredBan
from presence.store.error_classes import passes
from presence.store.keys import Keys
from presence.store.node_states import NodeState
from presence.store.questions import NodeAnswers, QuestionKind, ask
from presence.store.redis_client import RedisError
from presence.store.room_reads import read_memberships, read_public_counts
from presence.store.roster_table import read_rosters
from presence.store.shard_clients import ShardClients
from presence.subscriber.events import Entry, decode, entry_values, id_order, read_entry

Missing = Literal["trimmed", "not_found", "not_kept", "never_seen", "redis"]

_ENTRY_ID: Final = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


class EventSearch(NamedTuple):
    entry: Entry | None  # the event
    # why it is missing. ``trimmed``: the stream begins after it; ``not_found``: it is not in the stream (it
    # was deleted, or Redis lost it); ``not_kept``: Redis does not remember which it was.
    missing: Missing | None = None
    # if it is missing, Unix milliseconds of the stream's first entry; None: it is empty
    begins_ms: int | None = None


def entry_at(access: ShardClients, keys: Keys, shard: int, entry_id: str) -> EventSearch:
    """Return the event with an entry id.

    Raises:
        RedisError: Redis does not answer.
    """
    key = keys.events(shard)
    if not _ENTRY_ID.fullmatch(entry_id):
        return EventSearch(None, "not_found")
    answer: Any = access.at(key).xrange(key, entry_id, entry_id, count=1)
    if answer:
        return EventSearch(read_entry(shard, answer[0]))
    return _missing(access, key, entry_id)


def _missing(access: ShardClients, key: str, entry_id: str) -> EventSearch:
    """Return that there is no event with an id, and whether the stream begins after it."""
    answer: Any = access.at(key).xrange(key, "-", "+", count=1)
    begins = id_order(answer[0][0].decode()) if answer else None
    is_trimmed = begins is None or id_order(entry_id) < begins
    return EventSearch(None, "trimmed" if is_trimmed else "not_found", begins and begins[0])


ANSWER_TIMEOUT_S: Final = 2.0  # for answers of nodes; a live one answers within milliseconds
RECHECK_DELAY_S: Final = 0.1  # before sources that disagree are read again: they may be out of step
RETRY_WITHIN_S: Final = 0.5  # only calls that fail this quickly are retried
MAX_ATTEMPTS: Final = 3  # two connections may be stale: the reader's and our own
_UNASKED: Final = EventSearch(None, "redis")
_NUMBERS: Final = ("code", "at_ms", "since_ms", "last_seen_ms")  # required to describe an event

NodeAnswer = Mapping[str, Any]
"""The answer of a node, see `presence.server.question_answers`."""


@dataclass(slots=True)
class _Known:
    """The facts gathered so far."""

    here: Mapping[str, NodeAnswer]
    state: dict[str, Any] | None = None
    nodes: Sequence[NodeState] = ()
    answered: NodeAnswers | None = None
    found: EventSearch = _UNASKED
    online: EventSearch = _UNASKED
    bans: Sequence[StoredBan] = ()
    roster_users: int | None = None
    rooms: Sequence[Mapping[str, Any]] = ()
    room_counts: Mapping[str, int] = field(default_factory=dict)  # of watched rooms, by Redis

    @property
    def answers(self) -> dict[str, NodeAnswer]:
        return {**(self.answered.answers if self.answered else {}), **self.here}


class Explainer:
    """Explains users; calls block, and may be made from any thread.

    Nothing is sent before the first one. `wait_s`: how long to wait for answers of nodes.

    Raises:
        ValueError: the URL is invalid.
    """

    def __init__(self, url: str, *, prefix: str = "presence", wait_s: float = ANSWER_TIMEOUT_S) -> None:
        self._reader = PresenceReader(url, prefix=prefix)
        self._access = ShardClients(url)
        self._wait_s = wait_s

    def explain(self, uid: str, here: Iterable[NodeAnswer] = ()) -> dict[str, Any]:
        """Return what is known about a user, as plain data for JSON.

        It is ``{uid, at_ms, redis, state, event, event_missing, online_event, why, notes, roster_users,
        rooms, sessions, ended, nodes}``.
        `redis`: None, or why Redis could not be reached; then `event` is None, and `state` may be. `state`:
        as `presence status --json`. `event`: that led to the state, as `presence tail --json`;
        `event_missing`: why there is none, see `EventSearch`; `online_event`: of this online period, if
        `event` is another. `roster_users`: number of users in the roster that the backend has stored; None if
        there is none, or Redis could not be reached. `rooms`: ``{room, devices, counts, member, why}`` for
        each room of the user; `counts`: whether `public` includes the user; `member`: as of
        `PresenceReader.members`, or None. `sessions`: see `presence.server.question_answers`, with
        `on_record`: whether the state has it, None if unknown; each of its `rooms`, which it watches, has
        `stored`, the count by Redis, None if unknown. `ended`: ended sessions that nodes remember, the latest
        first:
        ``{node, device, session, code, reason, at_ms, last_packet_ms, idle_timeout_s, deadline_ms}``.
        `nodes`: ``{node, status, answer, version}`` of all nodes.

        Args:
            uid: the user.
            here: answers of nodes that the caller has; these nodes are not asked again.

        Raises:
            ValueError: the uid is invalid.
        """
        if complaint := uid_complaint(uid):
            raise ValueError(f"{uid!r} is not a valid uid: it {complaint}")
        known, failure = _Known({answer["node"]: answer for answer in here}), None
        try:
            self._gather_with_retries(uid, known)
        except (RedisError, ValueError) as error:
            failure = redact_text(str(error)) or type(error).__name__
        return _report(uid, known, failure)

    def _gather_with_retries(self, uid: str, known: _Known) -> None:
        """Gather facts; retry if a connection was stale: Redis was restarted, or a slot was moved.

        Raises:
            RedisError, ValueError: it keeps failing, or failed slowly.
        """
        give_up = time.monotonic() + RETRY_WITHIN_S
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._gather(uid, known)
            except RedisError as error:
                if not passes(error) or attempt == MAX_ATTEMPTS - 1 or time.monotonic() >= give_up:
                    raise
                self._access.invalidate(answer=error)
            else:
                return

    def _gather(self, uid: str, known: _Known) -> None:
        begun = time.monotonic()
        self._ask(uid, known)
        if explain_text.disagree(known.state, known.answers) and time.monotonic() - begun < 1:
            self._access.pause(RECHECK_DELAY_S)
            self._ask(uid, known)
        state, keys = known.state or {}, self._reader.keys()
        if state["id"] is not None:
            shard = keys.shard(uid)
            known.found = entry_at(self._access, keys, shard, state["id"])
            if state["status"] != "offline":
                known.online = known.found
                entry = known.found.entry
                if entry is not None and (began := entry.fields.get("since_id")):
                    known.online = entry_at(self._access, keys, shard, began)
        elif state["last_seen_ms"] is None:
            known.found = EventSearch(None, "never_seen")
        else:
            known.found = EventSearch(None, "not_kept")
        roster = read_rosters(self._access, keys, [uid])[uid]
        known.roster_users = None if roster is None else len(roster)
        watched = {
            room["room"]
            for answer in known.answers.values()
            for session in answer["sessions"]
            for room in session.get("rooms", ())
        }
        known.room_counts = read_public_counts(self._access, keys, sorted(watched))
        if names := state.get("rooms"):
            found = read_memberships(self._access, keys, uid, names)
            known.rooms = [
                explain_text.membership(state, room, *found[room], keys.shard(uid)) for room in names
            ]

    def _ask(self, uid: str, known: _Known) -> None:
        known.state = self._reader.state(uid)
        known.bans = [each for each in self._reader.bans() if each.uid == uid]
        known.nodes = self._reader.nodes()
        names = {each.node for each in known.nodes} | {str(each["node"]) for each in known.state["sessions"]}
        asked, keys = names - known.here.keys(), self._reader.keys()
        known.answered = ask(self._access, keys, QuestionKind.EXPLAIN, uid, asked, wait_s=self._wait_s)

    def close(self) -> None:
        self._reader.close()
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _report(uid: str, known: _Known, failure: str | None) -> dict[str, Any]:
    state, found = known.state, known.found
    event, online = _event(found), _event(known.online)
    missing = found.missing or (None if event else "not_found")
    nodes = _nodes(known)
    sessions = [
        {
            **session,
            "on_record": explain_text.is_on_record(state, session),
            "rooms": [
                {**room, "stored": known.room_counts.get(room["room"])} for room in session.get("rooms", ())
            ],
        }
        for _, answer in sorted(known.answers.items())
        for session in answer["sessions"]
    ]
    ended = sorted(
        ({"node": node, **end} for node, answer in known.answers.items() for end in answer.get("ended", ())),
        key=lambda end: -end["at_ms"],
    )
    if state is None:
        sentence = "not known: Redis cannot be reached"
        if sessions:
            has = ", ".join(f"{explain_text.device(each)} at node {each['node']}" for each in sessions)
            sentence += f"; there is a session of {has}"
    else:
        lost = known.online if event else found
        end = next((each for each in ended if event and each["session"] == event["session"]), None)
        alive = {each["node"] for each in nodes if each["status"] == "alive"}
        sentence = explain_text.why(
            state,
            event,
            online,
            missing or lost.missing,
            lost.begins_ms,
            end=end,
            is_node_alive=event is not None and event.get("node") in alive,
        )
    return {
        "uid": uid,
        "at_ms": int(time.time() * 1000),
        "redis": failure,
        "state": plain_state(state),
        "event": event,
        "event_missing": missing,
        "online_event": None if online == event else online,
        "why": sentence,
        "notes": [*map(explain_text.banned, known.bans), *explain_text.notes(state, known.answers, nodes)],
        "roster_users": known.roster_users,
        "rooms": list(known.rooms),
        "sessions": sessions,
        "ended": ended,
        "nodes": nodes,
    }


def _event(found: EventSearch) -> dict[str, Any] | None:
    """Return an event as data; None if it is missing, or damaged."""
    if found.entry is None or decode(found.entry) is None:
        return None
    values = entry_values(found.entry)
    return values if all(isinstance(values.get(name), int) for name in _NUMBERS) else None


def _nodes(known: _Known) -> list[dict[str, Any]]:
    rows_by_name = {each.node: each for each in known.nodes}
    named = {str(each["node"]) for each in known.state["sessions"]} if known.state else set[str]()
    absent = "gone" if known.nodes or known.state else "unknown"
    rows = []
    for name in sorted({*rows_by_name, *named, *known.answers}):
        if name in known.answers:
            answer = "answered"
        else:
            answer = "not_asked"
            if known.answered is not None:
                answer = "not_listening" if name in known.answered.not_listening else "no_answer"
        row = rows_by_name.get(name)
        rows.append(
            {
                "node": name,
                "status": row.status if row else absent,
                "answer": answer,
                "version": row.version if row else None,
            }
        )
    return rows
