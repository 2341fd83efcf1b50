"""Why a user is what he is, in plain words: from his state and the event that made it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from presence.protocol import Code

State = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, Any]]
"""What nodes told, see `presence.server.session_report`."""

_SILENT = {
    ("dead", "not_listening"): "it is dead, and others end its sessions",
    ("dead", "no_answer"): "it is dead, and others end its sessions",
    ("left", "not_listening"): "it has drained and ended; its users have time to return",
    ("left", "no_answer"): "it has drained and ended; its users have time to return",
    ("silent", "not_listening"): "its lease has ended, and it does not listen",
    ("silent", "no_answer"): "its lease has ended",
    ("alive", "not_listening"): "it does not listen: it starts or stops, or its connection to Redis broke",
    ("gone", "not_listening"): "no node of this name has a lease",
    ("gone", "no_answer"): "no node of this name has a lease",
}
_LATE = "it is busy, asked too much, or too old to know the question"


def is_on_record(state: State | None, session: Mapping[str, Any]) -> bool | None:
    """Whether a state names the session of a node; None: it is not known."""
    if state is None:
        return None
    return any(
        (each["device"], each["session"]) == (session["device"], session["session"])
        for each in state["sessions"]
    )


def disagree(state: State | None, answers: Answers) -> bool:
    """Whether nodes have other sessions than the state names."""
    return any(_unregistered(state, answers)) or any(_unknown_there(state, answers))


def notes(state: State | None, answers: Answers, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences; none where all is as it should be.

    Args:
        state: the user's; None if Redis could not be asked.
        answers: what nodes told.
        nodes: all of them, as `presence.ops.explain` tells.
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
                    f"its session ends as {reason} in {due} unless it comes back"
                )


def _unregistered(state: State | None, answers: Answers) -> Iterator[str]:
    for node, answer in sorted(answers.items()):
        for session in answer["sessions"]:
            if is_on_record(state, session) is False:
                told = f"Redis has not been told yet; {answer.get('outbox', 0)} changes wait there"
                if not session["vouched"]:
                    told = "Redis is not told of it until its client, silent for too long, is heard again"
                yield f"node {node} has a session of {device(session)} that is not on record: {told}"


def _unknown_there(state: State | None, answers: Answers) -> Iterator[str]:
    for each in state["sessions"] if state else ():
        answer = answers.get(each["node"])
        if answer is not None and not any(s["session"] == each["session"] for s in answer["sessions"]):
            yield (
                f"the record names a session of {device(each)} at node {each['node']}, which does not have "
                f"it: its end is on the way ({answer.get('outbox', 0)} changes wait there), "
                "or is made up for soon"
            )


def _without_answer(state: State | None, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in nodes:
        if each["answer"] in {"answered", "not_asked"}:
            continue
        node, version = each["node"], each["version"] or "unknown"
        on_record = [s for s in (state or {"sessions": ()})["sessions"] if s["node"] == node]
        named = f", which has {', '.join(map(device, on_record))}," if on_record else ""
        reason = _SILENT.get((each["status"], each["answer"]), f"{_LATE} (version {version})")
        yield f"node {node}{named} did not answer: {reason}"


Values = Mapping[str, Any]

_GRACE: Final = "and it did not come back within its grace"
_ENDS: Final[Mapping[int, str]] = {
    Code.LOGOUT: "its client logged out",
    Code.BACKGROUND: "its client logged out: the app went into the background",
    Code.CLOSED: f"its connection was closed without a logout, {_GRACE}",
    Code.IDLE_TIMEOUT: "nothing was heard of it for {silent}",
    Code.SLOW_CONSUMER: f"its connection was cut off, for it took too little of what it was sent, {_GRACE}",
    Code.REPLACED: "a later login of the same device took its place, and has ended as well",
    Code.KICKED: "an operator kicked it",
    Code.AUTH_EXPIRED: f"its token expired, {_GRACE}",
    Code.SESSION_LIMIT: "its user had more sessions than allowed",
    Code.PROTOCOL_ERROR: "it sent what the protocol does not allow",
    Code.RATE_LIMITED: f"it was hung up on, for it sent more packets than allowed, {_GRACE}",
    Code.TOO_LARGE: "it sent a packet that was too large",
    Code.SERVER_DRAIN: "its server was stopped, and it did not come back",
    Code.SERVER_RESTART: "its server was restarted, and it did not come back",
    Code.NODE_DOWN: "its server let its lease end (it died, was cut off from Redis, or was stopped), "
    "and it did not come back",
    Code.SERVER_ERROR: f"its server met an error of its own, {_GRACE}",
}
_LOST: Final[Mapping[str, str]] = {
    "trimmed": "the event is no longer in the stream, which begins {begins}",
    "gave_up": "the event was not found among the many that came after he was last seen",
    "not_found": "the event is not in the stream: it was erased, or Redis has lost it",
    "redis": "Redis did not tell the event",
}


def why(
    state: Values,
    event: Values | None,
    online_event: Values | None,
    missing: str | None,
    begins_ms: int | None,
    *,
    end: Values | None = None,
) -> str:
    """Return one sentence on a user.

    Args:
        state: as `PresenceReader.state` gives it.
        event: the event that led to what he shows; None if it is missing.
        online_event: the online event of this period, where that is another.
        missing: why there is none, see `presence.ops.explain.EventSearch`.
        begins_ms: then, when the stream's first entry was written; None: it is empty.
        end: what a node remembers of the end that the event tells, if one does.
    """
    begins = "nowhere: it is empty" if begins_ms is None else f"at {moment(begins_ms)}"
    lost = _LOST.get(missing or "", "").format(begins=begins)
    if state["status"] == "offline":
        return _offline(state, event, lost, end)
    came = _came(online_event or event, lost)
    status, since = state["status"], moment(state["since_ms"])
    if status == "unknown":
        return (
            f"unknown: online since {since} ({came}), but the leases of all nodes with sessions have ended; "
            "they come back, or others end these sessions as node_down"
        )
    if event is not None and event.get("type") == "away":
        by = f"of {device(event)} at node {event.get('node')}"
        turned = f"what was heard {by} made it so" if status == "away" else f"back by what was heard {by}"
        return f"{status} since {since}: {turned}; {came}"
    return f"{status} since {since}: {came}"


def _offline(state: Values, event: Values | None, lost: str, end: Values | None) -> str:
    if event is None and state["last_seen_ms"] is None:
        return "offline: never seen, or longer ago than it is remembered"
    if event is None:
        return f"offline, last seen {moment(state['last_seen_ms'])}; why is not known: {lost}"
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
        text += f"; its grace was lengthened to {span(grace_ms / 1000)}, for it came and went so often"
    return text


def _came(event: Values | None, lost: str) -> str:
    if event is None or event.get("type") != "online":
        return lost or "the online event is not known"
    where = f"{device(event)} at node {event.get('node')}"
    if event["code"] == Code.RETURNED:
        return f"{where} was registered anew, after a sweep had ended it or Redis had lost it"
    return f"{where} logged in at {moment(event['at_ms'])}"


def device(told: Values) -> str:
    """Return what a device is called in a sentence."""
    return f"device {told['device']}" if told.get("device") else "the default device"


def moment(unix_ms: int) -> str:
    """Return a time with its date, for people; what is none comes as it is."""
    try:
        at = datetime.fromtimestamp(unix_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{unix_ms % 1000:03d} UTC"


def hour(unix_ms: int, like_ms: int) -> str:
    """Return a time, without its date where that is the same as another's."""
    whole, like = moment(unix_ms), moment(like_ms)
    return whole[11:23] if whole[:10] == like[:10] and whole.endswith("UTC") else whole


def span(seconds: float) -> str:
    """Return a duration for people."""
    if abs(seconds) < 120:
        return f"{seconds:.1f} s"
    if abs(seconds) < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if abs(seconds) < 172_800 else f"{seconds / 86_400:.1f} days"
