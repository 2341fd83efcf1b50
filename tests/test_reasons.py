"""What is said about a user: a sentence for each reason, and for each reason that is missing."""

from typing import Any

import pytest

from presence.reasons import moment, span, why
from protocol import Code

SEEN_MS = 1_700_000_000_300
ENDED_MS = SEEN_MS + 30_300
OFFLINE: dict[str, Any] = {
    "status": "offline",
    "since_ms": None,
    "last_seen_ms": SEEN_MS,
    "id": None,
    "sessions": [],
}
TAIL = (
    ": the default device, online since 22:03:20.300, last packet 22:13:20.300, ended 22:13:50.600 by node n1"
)


def offline(code: int, **other: Any) -> dict[str, Any]:
    named = {"code": code, "reason": Code(code).reason if code in set(Code) else "new"}
    times = {"at_ms": ENDED_MS, "since_ms": SEEN_MS - 600_000, "last_seen_ms": SEEN_MS}
    return {"type": "offline", "node": "n1", "device": "", "session": "s1", **named, **times, **other}


def online(status: str = "online", since_ms: int = SEEN_MS) -> dict[str, Any]:
    return {"status": status, "since_ms": since_ms, "last_seen_ms": None, "id": "5-0", "sessions": []}


def event(type: str, code: int, **other: Any) -> dict[str, Any]:
    times = {"at_ms": SEEN_MS, "since_ms": SEEN_MS, "last_seen_ms": SEEN_MS}
    return {"type": type, "code": code, "node": "n1", "device": "phone", "session": "s1", **times, **other}


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (Code.LOGOUT, "its client logged out"),
        (Code.BACKGROUND, "its client logged out: the app went into the background"),
        (
            Code.CLOSED,
            "its connection was closed without a logout, and it did not come back within its grace",
        ),
        (Code.IDLE_TIMEOUT, "nothing was heard of it for 30.3 s"),
        (
            Code.SLOW_CONSUMER,
            "its connection was cut off, for it took too little of what it was sent, "
            "and it did not come back within its grace",
        ),
        (Code.REPLACED, "a later login of the same device took its place, and has ended as well"),
        (Code.KICKED, "an operator kicked it"),
        (Code.AUTH_EXPIRED, "its token expired, and it did not come back within its grace"),
        (Code.SESSION_LIMIT, "its user had more sessions than allowed"),
        (Code.PROTOCOL_ERROR, "it sent what the protocol does not allow"),
        (
            Code.RATE_LIMITED,
            "it was hung up on, for it sent more packets than allowed, "
            "and it did not come back within its grace",
        ),
        (Code.TOO_LARGE, "it sent a packet that was too large"),
        (Code.SERVER_DRAIN, "its server was stopped, and it did not come back"),
        (Code.SERVER_RESTART, "its server was restarted, and it did not come back"),
        (
            Code.SERVER_ERROR,
            "its server met an error of its own, and it did not come back within its grace",
        ),
        (999, "its last session ended as new (999)"),
    ],
)
def test_each_reason_of_an_end_has_its_words(code: int, cause: str) -> None:
    said = why(OFFLINE, offline(code), None, None, None)
    assert said == f"offline since 2023-11-14 22:13:50.600 UTC because {cause}{TAIL}"


def test_a_sweep_is_no_doing_of_the_node_that_died() -> None:
    cause = "its server let its lease end (it died, was cut off from Redis, or was stopped), "
    assert why(OFFLINE, offline(402), None, None, None) == (
        f"offline since 2023-11-14 22:13:50.600 UTC because {cause}and it did not come back"
        + TAIL.replace(" by node", " by the sweep of node")
    )


def test_a_deadline_that_a_node_remembers_is_told() -> None:
    said = why(OFFLINE, offline(201), None, None, None, end={"deadline_ms": SEEN_MS + 30_000})
    assert said.endswith("last packet 22:13:20.300, deadline 22:13:50.300, ended 22:13:50.600 by node n1")
    said = why(OFFLINE, offline(100), None, None, None, end={"deadline_ms": SEEN_MS + 30_000})
    assert said.endswith("last packet 22:13:20.300, ended 22:13:50.600 by node n1")


def test_a_lengthened_grace_is_told() -> None:
    said = why(OFFLINE, offline(200, grace_ms=40_000, device="tv"), None, None, None)
    assert said.endswith("; its grace was lengthened to 40.0 s, for it came and went so often")
    assert ": device tv, online since" in said


def test_times_of_another_day_have_their_date() -> None:
    said = why(OFFLINE, offline(100, since_ms=SEEN_MS - 86_400_000), None, None, None)
    assert "online since 2023-11-13 22:13:20.300 UTC, last packet 22:13:20.300" in said


@pytest.mark.parametrize(
    ("missing", "begins_ms", "because"),
    [
        ("trimmed", SEEN_MS, "the event is no longer in the stream, which begins at {at}"),
        ("trimmed", None, "the event is no longer in the stream, which begins nowhere: it is empty"),
        ("gave_up", SEEN_MS, "the event was not found among the many that came after he was last seen"),
        ("not_found", SEEN_MS, "the event is not in the stream: it was erased, or Redis has lost it"),
        ("redis", None, "Redis did not tell the event"),
    ],
)
def test_why_an_event_is_missing_is_told(missing: str, begins_ms: int | None, because: str) -> None:
    said = why(OFFLINE, None, None, missing, begins_ms)
    at = "2023-11-14 22:13:20.300 UTC"
    assert said == f"offline, last seen {at}; why is not known: {because.format(at=at)}"


def test_a_stranger_is_one() -> None:
    never = {**OFFLINE, "last_seen_ms": None}
    said = why(never, None, None, "never_seen", None)
    assert said == "offline: never seen, or longer ago than it is remembered"


@pytest.mark.parametrize(
    ("state", "shown", "began", "said"),
    [
        (
            online(),
            event("online", 1),
            None,
            "online since {at}: device phone at node n1 logged in at {at}",
        ),
        (
            online(),
            event("online", 2),
            None,
            "online since {at}: device phone at node n1 was registered anew, after a sweep had ended it or "
            "Redis had lost it",
        ),
        (
            online("away"),
            event("away", 3),
            event("online", 1, device=""),
            "away since {at}: what was heard of device phone at node n1 made it so; the default device at "
            "node n1 logged in at {at}",
        ),
        (
            online(),
            event("away", 4),
            event("online", 1),
            "online since {at}: back by what was heard of device phone at node n1; device phone at node n1 "
            "logged in at {at}",
        ),
        (
            online(),
            event("update", 5),
            event("online", 1),
            "online since {at}: device phone at node n1 logged in at {at}",
        ),
        (
            online("away"),
            event("away", 3),
            None,
            "away since {at}: what was heard of device phone at node n1 made "
            "it so; the online event is not known",
        ),
        (
            online("unknown"),
            event("online", 1),
            None,
            "unknown: online since {at} (device phone at node n1 logged in at {at}), but the leases of all "
            "nodes with sessions have ended; they come back, or others end these sessions as node_down",
        ),
    ],
)
def test_who_is_there_has_come_somehow(
    state: dict[str, Any], shown: dict[str, Any], began: dict[str, Any] | None, said: str
) -> None:
    assert why(state, shown, began, None, None) == said.format(at="2023-11-14 22:13:20.300 UTC")


def test_who_is_there_though_his_event_is_not() -> None:
    said = why(online(), None, None, "trimmed", SEEN_MS + 1)
    assert said == (
        "online since 2023-11-14 22:13:20.300 UTC: the event is no longer in the stream, "
        "which begins at 2023-11-14 22:13:20.301 UTC"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (119.94, "119.9 s"), (120, "2.0 min"), (7200, "2.0 h"), (172_800, "2.0 days")],
)
def test_spans_have_the_unit_that_people_use(seconds: float, said: str) -> None:
    assert span(seconds) == said


@pytest.mark.parametrize(
    ("unix_ms", "said"),
    [(0, "1970-01-01 00:00:00.000 UTC"), (10**18, "1000000000000000000 ms")],
)
def test_times_of_nobody_are_told_as_they_are(unix_ms: int, said: str) -> None:
    assert moment(unix_ms) == said
