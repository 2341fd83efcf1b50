"""Everything that is known of a user, put together for operators: who has him, since when, and why.

::

    from presence.explanation import Explainer

    with Explainer("redis://localhost:6379") as explainer:
        print(explainer.explain("ann")["why"])

Redis tells his state and the event that made it; the nodes are asked what they have of him. Whoever can ask
some of the nodes by another way hands over what they said: it counts while Redis is away, too.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from presence import last_events, notes, reasons
from presence.event_lines import entry_values
from presence.last_events import Found
from presence.reader import PresenceReader
from presence.redaction import redact_text
from presence.rendering import plain_state
from presence.store import inquiring
from presence.store.access import Access
from presence.store.client import RedisError
from presence.store.failures import passes
from presence.store.inquiring import Heard
from presence.store.nodes import NodeState
from presence.subscriber.events import decode
from protocol import Kind
from protocol.schema import SCHEMA

WAIT_S: Final = 2.0  # for the answers of nodes; one that lives answers within milliseconds
AGAIN_S: Final = 0.1  # until a second look at what does not fit together: it may have changed in between
RETRY_S: Final = 0.5  # so soon has to fail what is tried again,
ATTEMPTS_MAX: Final = 3  # for two connections may have grown old: the reader's and the own
_check_uid: Final = SCHEMA[Kind.LOGIN]["uid"].check
_UNASKED: Final = Found(None, "redis")
_NUMBERS: Final = ("code", "at_ms", "since_ms", "last_seen_ms")  # that a sentence on an event needs

NodeAnswer = Mapping[str, Any]
"""What a node told, see `presence.explaining`."""


@dataclass(slots=True)
class _Known:
    """What has been found out so far."""

    here: Mapping[str, NodeAnswer]
    state: dict[str, Any] | None = None
    nodes: Sequence[NodeState] = ()
    heard: Heard | None = None
    found: Found = _UNASKED
    online: Found = _UNASKED

    @property
    def answers(self) -> dict[str, NodeAnswer]:
        return {**(self.heard.answers if self.heard else {}), **self.here}


class Explainer:
    """Explains users; calls block, and may be made from any thread.

    Args:
        url: as `presence.store.address` takes it; nothing is sent yet.
        prefix: what the servers' keys begin with.
        wait_s: how long nodes may take for their answers.

    Raises:
        ValueError: the URL's scheme or form is not known.
    """

    def __init__(self, url: str, *, prefix: str = "presence", wait_s: float = WAIT_S) -> None:
        self._reader = PresenceReader(url, prefix=prefix)
        self._access = Access(url)
        self._wait_s = wait_s

    def explain(self, uid: str, here: Iterable[NodeAnswer] = ()) -> dict[str, Any]:
        """Return what is known of a user, as data that JSON can hold.

        It is ``{uid, at_ms, redis, state, event, event_missing, online_event, why, notes, sessions, ended,
        nodes}``.
        `redis` is None, or why Redis could not be asked: `state` may be None then, and `event` is. `state`:
        as `presence status --json`. `event`: as `presence tail --json`, the one that led to what he shows;
        `event_missing`: if there is none, see `presence.last_events`; `online_event`: that of this online
        period, where `event` is another. `sessions`: as `presence.explaining` tells, with `on_record`:
        whether the state names it, None if that is not known. `ended`: his sessions that nodes remember,
        though they live no more, the latest first: ``{node, device, session, code, reason, at_ms,
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
        give_up = time.monotonic() + RETRY_S
        for attempt in range(ATTEMPTS_MAX):
            try:
                self._look(uid, known)
            except RedisError as error:
                if not passes(error) or attempt == ATTEMPTS_MAX - 1 or time.monotonic() >= give_up:
                    raise
                self._access.doubt(answer=error)
            else:
                return

    def _look(self, uid: str, known: _Known) -> None:
        begun = time.monotonic()
        self._ask(uid, known)
        if notes.disagree(known.state, known.answers) and time.monotonic() - begun < 1:
            self._access.pause(AGAIN_S)
            self._ask(uid, known)
        state, keys = known.state or {}, self._reader.keys()
        if state["id"] is not None:
            shard = keys.shard(uid)
            known.found = known.online = last_events.entry_at(self._access, keys, shard, state["id"])
            entry = known.found.entry
            if entry is not None and (began := entry.fields.get("since_id")):
                known.online = last_events.entry_at(self._access, keys, shard, began)
        elif state["last_seen_ms"] is None:
            known.found = Found(None, "never_seen")
        else:
            known.found = last_events.last_offline(self._access, keys, uid, state["last_seen_ms"])

    def _ask(self, uid: str, known: _Known) -> None:
        known.state = self._reader.state(uid)
        known.nodes = self._reader.nodes()
        names = {each.node for each in known.nodes} | {str(each["node"]) for each in known.state["sessions"]}
        known.heard = inquiring.ask(
            self._access, self._reader.keys(), uid, names - known.here.keys(), self._wait_s
        )

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _put_together(uid: str, known: _Known, failure: str | None) -> dict[str, Any]:
    state, found = known.state, known.found
    event, online = _event(found), _event(known.online)
    missing = found.missing or (None if event else "not_found")
    nodes = _nodes(known)
    sessions = [
        {**session, "on_record": notes.is_on_record(state, session)}
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
            has = ", ".join(f"{reasons.device(each)} at node {each['node']}" for each in sessions)
            sentence += f"; there is a session of {has}"
    else:
        lost = known.online if event else found
        end = next((each for each in ended if event and each["session"] == event["session"]), None)
        sentence = reasons.why(state, event, online, missing or lost.missing, lost.begins_ms, end=end)
    return {
        "uid": uid,
        "at_ms": int(time.time() * 1000),
        "redis": failure,
        "state": plain_state(state),
        "event": event,
        "event_missing": missing,
        "online_event": None if online == event else online,
        "why": sentence,
        "notes": notes.notes(state, known.answers, nodes),
        "sessions": sessions,
        "ended": ended,
        "nodes": nodes,
    }


def _event(found: Found) -> dict[str, Any] | None:
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
