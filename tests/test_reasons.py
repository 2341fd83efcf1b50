"""What is said about a user: a sentence for each reason, and for each reason that is missing."""

from typing import Any

import pytest

from presence.reasons import span, why
from protocol import Code

SEEN_MS = 1_700_000_000_300
ENDED_MS = SEEN_MS + 30_300
AT = "2023-11-14 22:13:20.300 UTC"  # SEEN_MS
OFFLINE: dict[str, Any] = {"status": "offline", "since_ms": None, "last_seen_ms": SEEN_MS}


def offline(code: int, **other: Any) -> dict[str, Any]:
    named = {"code": code, "reason": Code(code).reason if code in set(Code) else "new"}
    times = {"at_ms": ENDED_MS, "since_ms": SEEN_MS - 600_000, "last_seen_ms": SEEN_MS}
    return {"type": "offline", "node": "n1", "device": "", "session": "s1", **named, **times, **other}


def event(type: str, code: int, **other: Any) -> dict[str, Any]:
    times = {"at_ms": SEEN_MS, "since_ms": SEEN_MS, "last_seen_ms": SEEN_MS}
    return {"type": type, "code": code, "node": "n1", "device": "phone", "session": "s1", **times, **other}


@pytest.mark.parametrize(
    ("code", "cause", "has_grace"),
    [
        (Code.LOGOUT, "logged out:", False),
        (Code.BACKGROUND, "into the background", False),
        (Code.CLOSED, "closed without a logout", True),
        (Code.IDLE_TIMEOUT, "nothing was heard of it for 30.3 s", False),
        (Code.SLOW_CONSUMER, "took too little", True),
        (Code.REPLACED, "a later login of the same device", False),
        (Code.KICKED, "an operator kicked it", False),
        (Code.AUTH_EXPIRED, "its token expired", True),
        (Code.SESSION_LIMIT, "more sessions than allowed", False),
        (Code.PROTOCOL_ERROR, "what the protocol does not allow", False),
        (Code.RATE_LIMITED, "more packets than allowed", True),
        (Code.TOO_LARGE, "too large", False),
        (Code.SERVER_DRAIN, "stopped", False),
        (Code.SERVER_RESTART, "restarted", False),
        (Code.NODE_DOWN, "let its lease end", False),
        (Code.SERVER_ERROR, "an error of its own", True),
        (999, "as new (999)", False),
    ],
)
def test_each_reason_of_an_end_has_its_words(code: int, cause: str, has_grace: bool) -> None:
    said = why(OFFLINE, offline(code), None, None, None)
    because = said.partition(", online since")[0]
    assert cause in because
    assert ("within its grace" in because) is has_grace
    by = "by the sweep of node n1" if code == Code.NODE_DOWN else "by node n1"
    assert said.startswith("offline since 2023-11-14 22:13:50.600 UTC because ")
    assert said.endswith(
        f": the default device, online since 22:03:20.300, last packet 22:13:20.300, ended 22:13:50.600 {by}"
    )


@pytest.mark.parametrize(("code", "is_told"), [(201, True), (100, False)])
def test_a_deadline_that_a_node_remembers_is_told_of_who_fell_silent(code: int, is_told: bool) -> None:
    said = why(OFFLINE, offline(code), None, None, None, end={"deadline_ms": SEEN_MS + 30_000})
    assert (", deadline 22:13:50.300, ended" in said) is is_told


def test_a_lengthened_grace_and_times_of_another_day_are_told() -> None:
    told = offline(200, grace_ms=40_000, device="tv", since_ms=SEEN_MS - 86_400_000)
    said = why(OFFLINE, told, None, None, None)
    assert ": device tv, online since 2023-11-13 22:13:20.300 UTC, last packet 22:13:20.300" in said
    assert said.endswith("; its grace was lengthened to 40.0 s, for it came and went so often")


@pytest.mark.parametrize(
    ("missing", "begins_ms", "because"),
    [
        ("trimmed", SEEN_MS, f"no longer in the stream, which begins at {AT}"),
        ("trimmed", None, "which begins nowhere: it is empty"),
        ("gave_up", SEEN_MS, "not found among the many"),
        ("not_found", SEEN_MS, "erased, or Redis has lost it"),
        ("redis", None, "Redis did not tell the event"),
    ],
)
def test_why_an_event_is_missing_is_told(missing: str, begins_ms: int | None, because: str) -> None:
    said = why(OFFLINE, None, None, missing, begins_ms)
    assert said.startswith(f"offline, last seen {AT}; why is not known: ")
    assert because in said
    online = why(shown("online"), None, None, missing, begins_ms)
    assert online.startswith(f"online since {AT}: ")
    assert because in online


def shown(status: str) -> dict[str, Any]:
    return {"status": status, "since_ms": SEEN_MS, "last_seen_ms": None, "id": "5-0", "sessions": []}


CAME = f"device phone at node n1 logged in at {AT}"
LOGIN = event("online", 1)


@pytest.mark.parametrize(
    ("status", "last", "began", "said"),
    [
        ("online", LOGIN, None, CAME),
        ("online", event("online", 2), None, "device phone at node n1 was registered anew, after a sweep"),
        ("away", event("away", 3), LOGIN, f"what was heard of device phone at node n1 made it so; {CAME}"),
        ("online", event("away", 4), LOGIN, f"back by what was heard of device phone at node n1; {CAME}"),
        ("online", event("update", 5), LOGIN, CAME),
        ("away", event("away", 3), None, "device phone at node n1 made it so; the online event is not known"),
        ("unknown", LOGIN, None, f"({CAME}), but the leases of all nodes with sessions have ended"),
    ],
)
def test_who_is_there_has_come_somehow(
    status: str, last: dict[str, Any], began: dict[str, Any] | None, said: str
) -> None:
    told = why(shown(status), last, began, None, None)
    assert told.startswith(
        f"{status}: online since {AT} " if status == "unknown" else f"{status} since {AT}: "
    )
    assert said in told


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (119.94, "119.9 s"), (120, "2.0 min"), (7200, "2.0 h"), (172_800, "2.0 days")],
)
def test_spans_have_the_unit_that_people_use(seconds: float, said: str) -> None:
    assert span(seconds) == said
