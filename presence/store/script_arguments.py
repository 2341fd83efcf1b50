"""Arguments of the scripts, and parsing of their answers.

Python and the scripts have one word for a thing. Stored data, calls and answers keep some older words:

====================================  ==================  ====================
Python                                stored or sent      scripts
====================================  ==================  ====================
`Reply.event_counts`                  `told`              `event_counts`
`CounterSnapshot.event_counts`        `told`              `former_counts`
`Opened.batch_history`                `trail`             `batch_history`
`Opened.peer_traces`                  `traces`            `peer_traces`
`Probe.peer_traces`                   `traces`            `peer_traces_key`
`ReplyStatus.OTHER_REPLICATION`       `history`           `replication_id`
`Op.PENDING_LOGIN`                    `hold`              `add_pending_login`
`Keys.pending_logins`                 `pending`           `pending_logins_key`
`Keys.pending_nodes`                  `holding`           `pending_nodes_key`
`ReplyStatus.MISSING_BATCH`           `gap`               `refuse`
`Opening.skipped`                     `dropped`           `opening`
`LoginFacts.device_class`             `class`             `TEXTS`
====================================  ==================  ====================

Tests: `tests/store/test_script_arguments.py`, `tests/store/test_apply.py`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from presence.cluster.lease_table import LEFT, LeaseRow
from presence.core.changes import Op, SessionName
from presence.core.profiles import PLAIN, Profile
from presence.outbox.event_counts import EventCount
from presence.outbox.overflow import SkippedChanges
from presence.outbox.replies import (
    CounterSnapshot,
    NodeNotice,
    NodeNoticeKind,
    Opened,
    PeerTrace,
    PeerTraces,
    Probe,
    Reply,
    ReplyStatus,
    Superseded,
)
from presence.outbox.steps import (
    FENCE_TTL_S,
    Batch,
    Compare,
    Counter,
    Fencing,
    Item,
    Opening,
    Reindex,
    Retirement,
    Step,
    Sweep,
)
from presence.protocol.constants import Code
from presence.store.keys import Keys
from presence.store.script_runner import Call

DATA_VERSION: Final = "2"  # of the form of the data; docs/redis-data.md has all

MAX_FIELDS_PER_CALL: Final = 512  # of a retirement or a sweep: as much work as a batch

COUNT_DIGITS: Final = 16  # Lua counts exactly up to 2^53

Answer = tuple[bytes, bytes]  # MessagePack, replication id


@dataclass(frozen=True, slots=True)
class Shape:
    """Arguments that all calls of scripts share."""

    keys: Keys
    maxlen: int  # approximate entries in a stream
    seen_retention_ms: int  # how long `last_seen` of offline users is kept
    max_sessions: int = 8  # of a user, on all nodes together
    session_policy: str = "oldest"  # sessions to end if there are more: the "oldest" or the "newest"
    class_limits: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # both, by class of device
    device_events: bool = False  # whether a device that comes or goes has an entry

    def key_names(self, shard: int, node: str) -> list[str]:
        """Return KEYS of all scripts."""
        keys = self.keys
        return [
            keys.events(shard),
            keys.online(shard),
            keys.seen(shard),
            keys.node(shard, node),
            keys.peer_traces(shard),
            keys.pending_nodes(shard),
            keys.shard_meta(shard),
            keys.absent(shard),
            keys.left(shard),
        ]

    def _common(self, shard: int, node: str, generation: int, replication_id: str) -> list[Any]:
        keys = self.keys
        return [
            node,
            generation,
            replication_id,
            keys.node(shard, ""),
            keys.online_channel,
            keys.offline_channel,
            keys.control_channel(""),
            self.maxlen,
            self.seen_retention_ms,
        ]

    def call(self, step: Step) -> Call:
        node, generation = step.counter.node, step.counter.generation
        arguments = [*self._common(step.shard, node, generation, step.replication_id), *_own_arguments(step)]
        if isinstance(step, Batch):
            by_class = msgpack.packb(self.class_limits) if self.class_limits else b""
            arguments += [self.max_sessions, self.session_policy, step.sent_ms, by_class]
        if isinstance(step, Batch | Retirement | Sweep):
            arguments.append("devices" if self.device_events else "")
        return Call(step.script, self.key_names(step.shard, node), arguments)

    def operator_call(self, script: str, shard: int, arguments: Iterable[Any]) -> Call:
        """Return the call of a script by a caller that is no node."""
        return Call(script, self.key_names(shard, ""), [*self._common(shard, "", 0, ""), *arguments])

    def probe_arguments(self, shard: int, node: str, inbox_read: int) -> list[Any]:
        """Return ARGV of probe.lua."""
        return [*self._common(shard, node, 0, ""), inbox_read]


def _own_arguments(step: Step) -> list[Any]:
    """Return ARGV from 10 on, of a batch without what the shape adds; see the scripts."""
    match step:
        case Batch():
            items, reasons = _packed_items(step.items, step.now)
            opening = _packed_opening(step.opening) if step.opening else b""
            return [step.counter.n, items, opening, reasons, "complete" if step.complete else ""]
        case Retirement():
            return [step.cursor, MAX_FIELDS_PER_CALL, step.latest_ms]
        case Fencing():
            return [step.other]
        case Compare():
            named = zip(step.sessions, map(_fingerprint, step.shown), strict=True)
            sessions = [text for name, shown in named for text in (*name, shown)]
            return [step.cursor, step.fields, msgpack.packb(sessions)]
        case Sweep():
            kept_ms = FENCE_TTL_S * 1000
            return [step.other, step.cursor, MAX_FIELDS_PER_CALL, step.waited_ms, step.latest_ms, kept_ms]
        case Reindex():
            return [step.cursor, step.users]


def _packed_items(items: Iterable[Item], now: float) -> tuple[bytes, bytes]:
    """Return items and reasons for apply.lua: flat, because tables are expensive in Lua."""
    values: list[object] = []
    reasons: dict[int, str] = {}
    for (
        (
            op,
            uid,
            device,
            session,
            code,
            at,
            at_ms,
            last_seen_ms,
            idle_timeout_ms,
            profile,
            grace_ms,
            privacy,
        ),
        restores,
    ) in items:
        if code not in reasons:
            reasons[code] = Code(code).reason
        age_ms = max(0, round((now - at) * 1000))
        if op is Op.END:
            name = "restore" if restores else "end"
            grace = str(grace_ms) if grace_ms else ""
            values += (name, uid, device, session, str(code), str(at_ms), str(last_seen_ms), age_ms, grace)
        else:
            shown = "" if profile is PLAIN else _packed_profile(profile)
            name = op.value + privacy
            values += (name, uid, device, session, str(code), str(at_ms), age_ms, idle_timeout_ms, shown)
    texts = {str(code): reason for code, reason in reasons.items()}
    return msgpack.packb(values), msgpack.packb(texts)


_LETTERS: Final = {
    "online": "-",
    "away": "a",
    "busy": "b",
    "dnd": "d",
    "invisible": "i",
}  # of statuses, in packed profiles


def _packed_profile(profile: Profile) -> str:
    """Return a profile for `show_as` of lib/profile.lua; a JSON text holds no NUL."""
    if profile == PLAIN:
        return ""
    texts = "\0".join(profile.texts).rstrip("\0")
    return f"{profile.privacy.upper()}{_LETTERS[profile.status]}{texts}"


def _fingerprint(profile: Profile) -> str:
    """Return the fingerprint of a profile; compare.lua computes the same from a record.

    The privacy has no part in it: that of the record counts.
    """
    if profile.status == "online" and not any(profile.texts):
        return ""
    return _LETTERS[profile.status] + "".join(
        hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() if text else "-"
        for text in profile.texts
    )


def _packed_opening(opening: Opening) -> bytes:
    skipped = opening.skipped or SkippedChanges(0, 0, 0, 0.0)
    gap = {"dropped": skipped.number, "from_ms": skipped.from_ms, "to_ms": skipped.to_ms}
    packed: bytes = msgpack.packb(
        {**gap, "floor": opening.floor, "before": opening.before, "version": DATA_VERSION}
    )
    return packed


def _superseded(rows: list[list[Any]]) -> tuple[Superseded, ...]:
    return tuple(Superseded(*row) for row in rows)


def _event_counts(flat: Iterable[Any]) -> tuple[EventCount, ...]:
    values = list(flat)  # an empty Lua table may arrive as a map
    return tuple(
        EventCount(*each) for each in zip(values[::3], map(int, values[1::3]), values[2::3], strict=True)
    )


def _traces(flat: list[str], own: str) -> PeerTraces:
    """Return the traces of the other nodes; a damaged one counts as absent."""
    traces = {}
    for node, text in zip(flat[::2], flat[1::2], strict=True):
        generation, complete, fenced, replication_id, *_ = [*text.split(), "", "", "", ""]
        if node != own and is_name(node) and (number := _count(generation)) is not None:
            is_complete = generation == complete != "0"
            traces[node] = PeerTrace(
                number, is_complete, fenced == "1", replication_id if is_complete else ""
            )
    return traces


def read_reply(step: Step, answer: Answer) -> Reply:
    reply = unpacked(answer[0])
    opened = None
    if "trail" in reply and isinstance(step, Batch) and step.opening:
        batch_history = tuple(
            CounterSnapshot(Counter(node, generation, n), _superseded(rows), _event_counts(told))
            for node, generation, n, rows, told in reply["trail"]
        )
        opened = Opened(batch_history, _traces(reply["traces"], step.counter.node))
    plain = (
        "generation",
        "fitting",
        "last_id",
        "cursor",
        "ended",
        "wait_ms",
        "done",
        "restored",
        "uncompared",
    )
    return Reply(
        status=ReplyStatus(reply["status"]),
        replication_id=answer[1].decode(),
        superseded=_superseded(reply.get("superseded", [])),
        event_counts=_event_counts(reply.get("told", [])),
        opened=opened,
        owned=_session_names(reply.get("owned", [])),
        missing=tuple(reply.get("missing", [])),
        damaged=tuple(reply.get("damaged", [])),
        **{name: reply[name] for name in plain if name in reply},
    )


def unpacked(packed: bytes) -> Any:
    """Return an unpacked answer; invalid UTF-8, which no node writes, becomes U+FFFD."""
    return msgpack.unpackb(packed, unicode_errors="replace")


def is_name(name: str) -> bool:
    """Whether a name from Redis can be one that a node wrote."""
    return "\ufffd" not in name


def _session_names(flat: list[str]) -> tuple[SessionName, ...]:
    return tuple(map(SessionName, flat[::3], flat[1::3], flat[2::3]))


def read_probe(shard: int, node: str, answer: Answer) -> Probe:
    reply = unpacked(answer[0])
    return Probe(
        shard=shard,
        replication_id=answer[1].decode(),
        fenced=reply["fenced"],
        counter=Counter(node, reply["generation"], reply["n"]),
        last_id=reply["last_id"],
        peer_traces=_traces(reply["traces"], node),
        inbox_n=reply["inbox_n"],
        now_ms=reply["now_ms"],
        inbox=tuple(
            notice
            for text in reply["inbox"]
            if (message := read_message(text)) is not None and (notice := read_notice(message)) is not None
        ),
    )


def read_message(text: str | bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of an inbox entry or a control message; None if it is none."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):  # any client of Redis with the right to publish may send anything
        return None
    return message if isinstance(message, dict) else None


def read_notice(message: Mapping[str, Any]) -> NodeNotice | None:
    """Return the notice in a message; None if its kind is unknown."""
    try:
        kind = NodeNoticeKind(message["type"])
        notice = NodeNotice(
            kind,
            message["uid"],
            message["device"],
            message["session"],
            message["by"],
            message["return_allowed"],
            message.get("privacy", ""),
        )
    except (ValueError, KeyError, TypeError):
        return None
    texts = (*notice[1:5], notice.privacy)
    is_sound = all(isinstance(each, str) for each in texts) and isinstance(notice.return_allowed, bool)
    return notice if is_sound else None


def read_lease_row(text: str, lease_end_ms: float) -> LeaseRow:
    """Return a row of the lease table from its text; see lease.lua."""
    counter, _, certificate = text.partition(" ")
    sweeper, _, n = certificate.partition(" ")
    end_ms = int(lease_end_ms) if math.isfinite(lease_end_ms) else 0
    if sweeper == LEFT:
        return LeaseRow(text, counter, lease_end_ms=end_ms, left_ms=_count(n) or 0)
    return LeaseRow(text, counter, sweeper, _count(n) or 0, end_ms)


def _count(text: str) -> int | None:
    """Return a counter of a script, exact as a double; None if the text is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS else None
