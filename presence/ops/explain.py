"""Everything that is known of a user, put together for operators: who has him, since when, and why.

::

    from presence.ops.explain import Explainer

    with Explainer("redis://localhost:6379") as explainer:
        print(explainer.explain("ann")["why"])

Redis tells his state and the event that made it; the nodes are asked what they have of him. Whoever can ask
some of the nodes by another way hands over what they said: it counts while Redis is away, too.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self

from presence.common.redaction import redact_text
from presence.common.text import plain_state
from presence.ops import explain_text
from presence.protocol import Kind
from presence.protocol.schema import SCHEMA
from presence.reader import PresenceReader
from presence.store import ask_nodes
from presence.store.ask_nodes import Heard
from presence.store.client import RedisError
from presence.store.error_classes import passes
from presence.store.keys import Keys
from presence.store.nodes import NodeState
from presence.store.shard_clients import ShardClients
from presence.subscriber.event_json import entry_values
from presence.subscriber.events import Entry, decode, id_order, read_entry

Missing = Literal["trimmed", "gave_up", "not_found", "never_seen", "redis"]

ENTRIES_PER_PAGE: Final = 1000  # some 200 KB, in 1.3 ms of Redis' time
MAX_ENTRIES: Final = 200_000  # of a shard: 30 s of time-out and as long again, at 3000 transitions a second
SEARCH_TIMEOUT_S: Final = 2.0
# The stream is dated by Redis' clock, and who was seen when by a server's.
MAX_CLOCK_SKEW_MS: Final = 5_000
_ENTRY_ID: Final = re.compile(r"\d{1,19}-\d{1,19}", re.ASCII)


class EventSearch(NamedTuple):
    """What came of looking for an event."""

    entry: Entry | None  # the event
    # why there is none. ``trimmed``: the stream begins after it; ``gave_up``: a bound was reached;
    # ``not_found``: it is not where it should be (somebody has deleted it, or Redis lost it).
    missing: Missing | None = None
    # of what is missing, Unix milliseconds of the stream's first entry; None: it is empty
    begins_ms: int | None = None


def entry_at(access: ShardClients, keys: Keys, shard: int, entry_id: str) -> EventSearch:
    """Return the event of an entry id.

    Raises:
        RedisError: Redis cannot answer.
    """
    key = keys.events(shard)
    if not _ENTRY_ID.fullmatch(entry_id):
        return EventSearch(None, "not_found")
    answer: Any = access.at(key).xrange(key, entry_id, entry_id, count=1)
    if answer:
        return EventSearch(read_entry(shard, answer[0]))
    begins = _first_id(access, key)
    is_trimmed = begins is None or id_order(entry_id) < id_order(begins)
    return EventSearch(None, "trimmed" if is_trimmed else "not_found", _ms(begins))


def last_offline(
    access: ShardClients,
    keys: Keys,
    uid: str,
    last_seen_ms: int,
    *,
    entries_max: int = MAX_ENTRIES,
    search_s: float = SEARCH_TIMEOUT_S,
) -> EventSearch:
    """Return the event with which a user went offline who was last seen at that time.

    Args:
        access: the way to Redis.
        keys: how keys are called.
        uid: the user.
        last_seen_ms: Unix milliseconds, as Redis keeps them.
        entries_max: how many entries are looked at.
        search_s: for how long.

    Raises:
        RedisError: Redis cannot answer.
    """
    shard = keys.shard(uid)
    key = keys.events(shard)
    begin = f"{max(0, last_seen_ms - MAX_CLOCK_SKEW_MS)}-0"
    wanted, seen = uid.encode(), b"%d" % last_seen_ms
    looked, deadline = 0, time.monotonic() + search_s
    for page in _pages(access, key, begin):
        for raw in page:
            fields = raw[1]
            if (
                fields.get(b"uid") == wanted
                and fields.get(b"type") == b"offline"
                and fields.get(b"last_seen_ms") == seen
            ):
                return EventSearch(read_entry(shard, raw))
        looked += len(page)
        if len(page) == ENTRIES_PER_PAGE and (looked >= entries_max or time.monotonic() >= deadline):
            return EventSearch(None, "gave_up", _ms(_first_id(access, key)))
    begins = _first_id(access, key)
    is_trimmed = begins is None or id_order(begin) < id_order(begins)
    return EventSearch(None, "trimmed" if is_trimmed else "not_found", _ms(begins))


def _pages(access: ShardClients, key: str, begin: str) -> Iterator[list[tuple[bytes, Any]]]:
    while True:
        page: Any = access.at(key).xrange(key, begin, "+", count=ENTRIES_PER_PAGE)
        yield page
        if len(page) < ENTRIES_PER_PAGE:
            return
        begin = f"({page[-1][0].decode()}"


def _first_id(access: ShardClients, key: str) -> str | None:
    answer: Any = access.at(key).xrange(key, "-", "+", count=1)
    return answer[0][0].decode() if answer else None


def _ms(entry_id: str | None) -> int | None:
    return None if entry_id is None else id_order(entry_id)[0]


ANSWER_TIMEOUT_S: Final = 2.0  # for the answers of nodes; one that lives answers within milliseconds
RECHECK_DELAY_S: Final = 0.1  # before sources that disagree are read again: they may be out of step
RETRY_WITHIN_S: Final = 0.5  # so soon has to fail what is tried again,
MAX_ATTEMPTS: Final = 3  # for two connections may have grown old: the reader's and the own
_check_uid: Final = SCHEMA[Kind.LOGIN]["uid"].check
_UNASKED: Final = EventSearch(None, "redis")
_NUMBERS: Final = ("code", "at_ms", "since_ms", "last_seen_ms")  # that a sentence on an event needs

NodeAnswer = Mapping[str, Any]
"""What a node told, see `presence.server.session_report`."""


@dataclass(slots=True)
class _Known:
    """What has been found out so far."""

    here: Mapping[str, NodeAnswer]
    state: dict[str, Any] | None = None
    nodes: Sequence[NodeState] = ()
    heard: Heard | None = None
    found: EventSearch = _UNASKED
    online: EventSearch = _UNASKED

    @property
    def answers(self) -> dict[str, NodeAnswer]:
        return {**(self.heard.answers if self.heard else {}), **self.here}


class Explainer:
    """Explains users; calls block, and may be made from any thread.

    Args:
        url: as `presence.common.redis_url` takes it; nothing is sent yet.
        prefix: what the servers' keys begin with.
        wait_s: how long nodes may take for their answers.

    Raises:
        ValueError: the URL's scheme or form is not known.
    """

    def __init__(self, url: str, *, prefix: str = "presence", wait_s: float = ANSWER_TIMEOUT_S) -> None:
        self._reader = PresenceReader(url, prefix=prefix)
        self._access = ShardClients(url)
        self._wait_s = wait_s

    def explain(self, uid: str, here: Iterable[NodeAnswer] = ()) -> dict[str, Any]:
        """Return what is known of a user, as data that JSON can hold.

        It is ``{uid, at_ms, redis, state, event, event_missing, online_event, why, notes, sessions, ended,
        nodes}``.
        `redis` is None, or why Redis could not be asked: `state` may be None then, and `event` is. `state`:
        as `presence status --json`. `event`: as `presence tail --json`, the one that led to what he shows;
        `event_missing`: if there is none, see `EventSearch`; `online_event`: that of this online
        period, where `event` is another. `sessions`: as `presence.server.session_report` has them, and
        `on_record`: whether the state names it, None if that is not known. `ended`: his sessions that nodes
        remember, though they live no more, the latest first: ``{node, device, session, code, reason, at_ms,
        last_packet_ms, idle_timeout_s, deadline_ms}``. `nodes`: ``{node, status, answer, version}`` of
        all.

        Args:
            uid: the user.
            here: what nodes have said already; these are not asked again.

        Raises:
            ValueError: no user can be called so.
        """
        if (complaint := _check_uid(uid)) is not None:
            raise ValueError(f"{uid!r} is no uid: it {complaint[1]}")
        known, failure = _Known({answer["node"]: answer for answer in here}), None
        try:
            self._look_again(uid, known)
        except (RedisError, ValueError) as error:
            failure = redact_text(str(error)) or type(error).__name__
        return _put_together(uid, known, failure)

    def _look_again(self, uid: str, known: _Known) -> None:
        """Look, and once more where a connection has grown old: Redis was restarted, a slot was moved.

        Raises:
            RedisError, ValueError: it fails still, or was slow to fail.
        """
        give_up = time.monotonic() + RETRY_WITHIN_S
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._look(uid, known)
            except RedisError as error:
                if not passes(error) or attempt == MAX_ATTEMPTS - 1 or time.monotonic() >= give_up:
                    raise
                self._access.doubt(answer=error)
            else:
                return

    def _look(self, uid: str, known: _Known) -> None:
        begun = time.monotonic()
        self._ask(uid, known)
        if explain_text.disagree(known.state, known.answers) and time.monotonic() - begun < 1:
            self._access.pause(RECHECK_DELAY_S)
            self._ask(uid, known)
        state, keys = known.state or {}, self._reader.keys()
        if state["id"] is not None:
            shard = keys.shard(uid)
            known.found = known.online = entry_at(self._access, keys, shard, state["id"])
            entry = known.found.entry
            if entry is not None and (began := entry.fields.get("since_id")):
                known.online = entry_at(self._access, keys, shard, began)
        elif state["last_seen_ms"] is None:
            known.found = EventSearch(None, "never_seen")
        else:
            known.found = last_offline(self._access, keys, uid, state["last_seen_ms"])

    def _ask(self, uid: str, known: _Known) -> None:
        known.state = self._reader.state(uid)
        known.nodes = self._reader.nodes()
        names = {each.node for each in known.nodes} | {str(each["node"]) for each in known.state["sessions"]}
        known.heard = ask_nodes.ask(
            self._access, self._reader.keys(), uid, names - known.here.keys(), self._wait_s
        )

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _put_together(uid: str, known: _Known, failure: str | None) -> dict[str, Any]:
    state, found = known.state, known.found
    event, online = _event(found), _event(known.online)
    missing = found.missing or (None if event else "not_found")
    nodes = _nodes(known)
    sessions = [
        {**session, "on_record": explain_text.is_on_record(state, session)}
        for _, answer in sorted(known.answers.items())
        for session in answer["sessions"]
    ]
    ended = sorted(
        ({"node": node, **end} for node, answer in known.answers.items() for end in answer.get("ended", ())),
        key=lambda end: -end["at_ms"],
    )
    if state is None:
        sentence = "not known: Redis cannot be asked"
        if sessions:
            has = ", ".join(f"{explain_text.device(each)} at node {each['node']}" for each in sessions)
            sentence += f"; there is a session of {has}"
    else:
        lost = known.online if event else found
        end = next((each for each in ended if event and each["session"] == event["session"]), None)
        sentence = explain_text.why(state, event, online, missing or lost.missing, lost.begins_ms, end=end)
    return {
        "uid": uid,
        "at_ms": int(time.time() * 1000),
        "redis": failure,
        "state": plain_state(state),
        "event": event,
        "event_missing": missing,
        "online_event": None if online == event else online,
        "why": sentence,
        "notes": explain_text.notes(state, known.answers, nodes),
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
    told = {each.node: each for each in known.nodes}
    named = {str(each["node"]) for each in known.state["sessions"]} if known.state else set[str]()
    absent = "gone" if known.nodes or known.state else "unknown"
    rows = []
    for name in sorted({*told, *named, *known.answers}):
        if name in known.answers:
            answer = "answered"
        else:
            answer = "not_asked"
            if known.heard is not None:
                answer = "not_listening" if name in known.heard.deaf else "no_answer"
        row = told.get(name)
        rows.append(
            {
                "node": name,
                "status": row.status if row else absent,
                "answer": answer,
                "version": row.version if row else None,
            }
        )
    return rows
