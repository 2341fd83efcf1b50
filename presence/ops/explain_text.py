"""Explains a user's state in plain words, from the state and the event that led to it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from presence.common.text import counted
from presence.protocol import Code
from presence.store.ban_table import StoredBan

State = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, Any]]
"""The answers of nodes, by name; see `presence.server.question_answers`."""

_SILENT = {
    ("dead", "not_listening"): "it is dead, and other nodes end its sessions",
    ("dead", "no_answer"): "it is dead, and other nodes end its sessions",
    ("left", "not_listening"): "it has drained and ended; its users may still return",
    ("left", "no_answer"): "it has drained and ended; its users may still return",
    ("silent", "not_listening"): "its lease has expired, and it does not listen",
    ("silent", "no_answer"): "its lease has expired",
    (
        "alive",
        "not_listening",
    ): "it does not listen: it starts or stops, or its connection to Redis is broken",
    ("gone", "not_listening"): "no node of this name has a lease",
    ("gone", "no_answer"): "no node of this name has a lease",
}
_DEPARTED: Final = {"dead", "left"}
_LATE = "it is busy, receives too many questions, or its version does not support this one"


def is_on_record(state: State | None, session: Mapping[str, Any]) -> bool | None:
    """Whether a state has the session of a node; None if unknown."""
    if state is None:
        return None
    return any(
        (each["device"], each["session"]) == (session["device"], session["session"])
        for each in state["sessions"]
    )


def disagree(state: State | None, answers: Answers) -> bool:
    """Whether the sessions of the nodes differ from those of the state."""
    return any(_unregistered(state, answers)) or any(_unknown_there(state, answers))


def notes(state: State | None, answers: Answers, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each irregularity.

    `state` is None if Redis could not be reached; `nodes` are all nodes as `presence.ops.explain` reports
    them.
    """
    return [
        *_lost(answers),
        *_unregistered(state, answers),
        *_unknown_there(state, answers),
        *_without_answer(state, nodes),
        *(
            f"node {node} has {answer['more']} more sessions of this user"
            for node, answer in sorted(answers.items())
            if answer.get("more")
        ),
    ]


def _lost(answers: Answers) -> Iterator[str]:
    for node, answer in sorted(answers.items()):
        for session in answer["sessions"]:
            if session["link"] == "lost" and session["due_in_s"] is not None:
                due, reason = span(session["due_in_s"]), session["ends_as"].get("reason")
                yield (
                    f"{device(session)} at node {node} has lost its connection: "
                    f"its session ends as {reason} in {due} unless the client returns"
                )


def _unregistered(state: State | None, answers: Answers) -> Iterator[str]:
    for node, answer in sorted(answers.items()):
        for session in answer["sessions"]:
            if is_on_record(state, session) is False:
                reason = f"it is not written to Redis yet; {answer.get('outbox', 0)} changes are queued there"
                if not session["vouched"]:
                    reason = "it is not registered until its client, silent for too long, sends a packet"
                yield f"node {node} has a session of {device(session)} that is not on record: {reason}"


def _unknown_there(state: State | None, answers: Answers) -> Iterator[str]:
    for each in state["sessions"] if state else ():
        answer = answers.get(each["node"])
        if answer is not None and not any(s["session"] == each["session"] for s in answer["sessions"]):
            yield (
                f"the record names a session of {device(each)} at node {each['node']}, which does not have "
                f"it: its end is on the way ({answer.get('outbox', 0)} changes are queued there), "
                "or the record will be corrected soon"
            )


def _without_answer(state: State | None, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    departed = 0
    for each in nodes:
        if each["answer"] in {"answered", "not_asked"}:
            continue
        node, version = each["node"], each["version"] or "unknown"
        on_record = [s for s in (state or {"sessions": ()})["sessions"] if s["node"] == node]
        if each["status"] in _DEPARTED and not on_record:
            departed += 1
            continue
        named = f", which has {', '.join(map(device, on_record))}," if on_record else ""
        reason = _SILENT.get((each["status"], each["answer"]), f"{_LATE} (version {version})")
        yield f"node {node}{named} did not answer: {reason}"
    if departed:
        yield f"{counted(departed, 'departed or dead node')} without a session of this user did not answer"


Values = Mapping[str, Any]

_GRACE: Final = "and it did not return within its grace period"
_ENDS: Final[Mapping[int, str]] = {
    Code.LOGOUT: "its client logged out",
    Code.BACKGROUND: "its client logged out: the app went into the background",
    Code.CLOSED: f"its connection was closed without a logout, {_GRACE}",
    Code.IDLE_TIMEOUT: "nothing was received from it for {silent}",
    Code.SLOW_CONSUMER: f"its connection was closed because it read too slowly, {_GRACE}",
    Code.REPLACED: "a later login of the same device replaced it, and has ended as well",
    Code.KICKED: "an operator kicked it",
    Code.AUTH_EXPIRED: f"its token expired, {_GRACE}",
    Code.SESSION_LIMIT: "its user had more sessions than allowed",
    Code.BANNED: "an operator banned its user, or that device",
    Code.PROTOCOL_ERROR: "it violated the protocol",
    Code.RATE_LIMITED: f"its connection was closed because it sent more packets than allowed, {_GRACE}",
    Code.TOO_LARGE: "it sent a packet that was too large",
    Code.SERVER_DRAIN: "its server was stopped, and it did not return",
    Code.SERVER_RESTART: "its server was restarted, and it did not return",
    Code.NODE_DOWN: "the lease of its server expired (it died, was cut off from Redis, or was stopped), "
    "and it did not return; or Redis had lost the end of its session",
    Code.SERVER_ERROR: f"its server had an internal error, {_GRACE}",
}
_LOST: Final[Mapping[str, str]] = {
    "trimmed": "the event is no longer in the stream, which {begins}",
    "not_kept": "Redis does not remember the event",
    "not_found": "the event is not in the stream: it was erased, or Redis has lost it",
    "redis": "Redis could not be asked for the event",
}


def why(
    state: Values,
    event: Values | None,
    online_event: Values | None,
    missing: str | None,
    begins_ms: int | None,
    *,
    end: Values | None = None,
    is_node_alive: bool = False,
) -> str:
    """Return one sentence that explains a user's state, as `PresenceReader.state` gives it.

    `event` led to this state, and is None if it is missing: `missing` says why, see
    `presence.ops.explain.EventSearch`, and `begins_ms` is the time of the stream's first entry, None if it is
    empty. `online_event`: of this online period, if it is another. `end`: what a node remembers of the end of
    that session, if any does. `is_node_alive`: whether the event's node has a lease, under the same id.
    """
    begins = "is empty" if begins_ms is None else f"begins at {moment(begins_ms)}"
    lost = _LOST.get(missing or "", "").format(begins=begins)
    if state["status"] == "offline":
        return _offline(state, event, lost, end, is_node_alive=is_node_alive)
    came = _came(online_event or event, lost)
    status, since = state["status"], moment(state["since_ms"])
    if status == "unknown":
        return (
            f"unknown: online since {since} ({came}), but the leases of all nodes with sessions "
            "have expired; they return, or other nodes end these sessions as node_down"
        )
    if event is not None and event.get("type") == "away":
        by = f"{device(event)} at node {event.get('node')}"
        turned = f"set by {by}" if status == "away" else f"back, set by {by}"
        return f"{status} since {since}: {turned}; {came}"
    return f"{status} since {since}: {came}"


def _offline(
    state: Values, event: Values | None, lost: str, end: Values | None, *, is_node_alive: bool
) -> str:
    if event is None and state["last_seen_ms"] is None:
        return "offline: never seen, or longer ago than Redis remembers"
    if event is None and "reason" in state:
        since = f"offline since {moment(state['since_ms'])} ({state['reason']})"
        return f"{since}, last seen {moment(state['last_seen_ms'])}; {lost}"
    if event is None:
        return f"offline, last seen {moment(state['last_seen_ms'])}; the reason is unknown: {lost}"
    if event["code"] == Code.NODE_DOWN and (is_node_alive or end is not None):
        return _reported_again(event, end)
    at_ms, seen_ms = event["at_ms"], event["last_seen_ms"]
    cause = _ENDS.get(event["code"], f"its last session ended as {event.get('reason')} ({event['code']})")
    deadline, by = "", "by the sweep of" if event["code"] == Code.NODE_DOWN else "by"
    if end is not None and event["code"] == Code.IDLE_TIMEOUT:
        deadline = f"deadline {hour(end['deadline_ms'], at_ms)}, "
    text = (
        f"offline since {moment(at_ms)} because {cause.format(silent=span((at_ms - seen_ms) / 1000))}: "
        f"{device(event)}, online since {hour(event['since_ms'], at_ms)}, "
        f"last packet {hour(seen_ms, at_ms)}, {deadline}"
        f"ended {hour(at_ms, at_ms)} {by} node {event.get('node')}"
    )
    if grace_ms := event.get("grace_ms"):
        text += f"; its grace period was extended to {span(grace_ms / 1000)} because it reconnected so often"
    return text


def _reported_again(event: Values, end: Values | None) -> str:
    """Explain an end as `node_down` by a node that lives: a fenced one goes on under another id.

    So no lease expired: the node found a session in Redis that it had ended. If it was cut off, and fenced
    before it could write the end, it remembers that end, too.
    """
    at_ms = event["at_ms"]
    who = f"{device(event)}, online since {hour(event['since_ms'], at_ms)}"
    reported = f"reported as node_down {hour(at_ms, at_ms)}"
    if end is None:
        return (
            f"offline since {moment(at_ms)} because its session had ended before, and Redis never got that "
            f"end, or lost it: {who}, {reported} by node {event.get('node')}"
        )
    ended_ms, seen_ms = end["at_ms"], end["last_packet_ms"]
    cause = _ENDS.get(end["code"], f"its last session ended as {end['reason']} ({end['code']})")
    cause = cause.format(silent=span((ended_ms - seen_ms) / 1000))
    return (
        f"offline since {moment(ended_ms)} because {cause}: {who}, last packet {hour(seen_ms, ended_ms)}, "
        f"ended {hour(ended_ms, ended_ms)} by node {end['node']}; Redis never got that end, "
        f"or lost it, so it was {reported}"
    )


def _came(event: Values | None, lost: str) -> str:
    if event is None or event.get("type") != "online":
        return lost or "the online event is unknown"
    where = f"{device(event)} at node {event.get('node')}"
    if event["code"] == Code.RETURNED:
        return f"{where} was registered again, after a sweep had ended it or Redis had lost it"
    return f"{where} logged in at {moment(event['at_ms'])}"


def membership(state: Values, room: str, member: Values | None, position: str, shard: int) -> dict[str, Any]:
    """Return why a user, who is in a room by the record, counts there or does not.

    `member`, `position`: see `presence.store.room_reads.read_memberships`. `shard`: the user's.
    """
    devices = [each["device"] for each in state["sessions"] if room in each.get("rooms", ())]
    if member is None:
        reached = f"it has the events of shard {shard} up to {position or 'none'}"
        text = f"not yet a member: {reached}, and no projector runs, it lags, or max_rooms is reached"
    elif member["invisible"]:
        text = f"invisible: counts for the backend only, by event {member['id']}"
    else:
        text = f"counts as {member['status']} by event {member['id']}"
    counts = member is not None and not member["invisible"]
    return {"room": room, "devices": devices, "counts": counts, "member": member, "why": text}


def banned(ban: StoredBan) -> str:
    whom = "the user is" if ban.device is None else f"{device({'device': ban.device})} is"
    until = "for ever" if ban.until_ms is None else f"until {moment(ban.until_ms)}"
    return f"{whom} banned {until}, by {ban.by or 'unknown'}" + (f": {ban.reason}" if ban.reason else "")


def device(event: Values) -> str:
    """Return the name of a device in a sentence."""
    return f"device {event['device']}" if event.get("device") else "the default device"


def moment(unix_ms: int) -> str:
    """Return a time with its date; an invalid one as milliseconds."""
    try:
        at = datetime.fromtimestamp(unix_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d} UTC"


def hour(unix_ms: int, like_ms: int) -> str:
    """Return a time, without the date if `like_ms` is on the same one."""
    whole, like = moment(unix_ms), moment(like_ms)
    return whole[11:23] if whole[:10] == like[:10] and whole.endswith("UTC") else whole


def span(seconds: float) -> str:
    """Return a duration with a readable unit."""
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 172_800 else f"{seconds / 86_400:.1f} days"
