"""The text about a user: the reason of its state, and what is inconsistent."""

from typing import Any

import pytest

from presence.ops.explain_text import _ENDS, disagree, is_on_record, notes, span, why
from presence.protocol import Code
from tests.support.nodes_that_answer import answer, session

SEEN_MS = 1_700_000_000_300
ENDED_MS = SEEN_MS + 30_300
AT = "2023-11-14 22:13:20.300 UTC"  # SEEN_MS
OFFLINE: dict[str, Any] = {"status": "offline", "since_ms": None, "last_seen_ms": SEEN_MS}
ENDED = "device tv, online since 22:03:20.300, last packet 22:13:20.300"


def event(type: str, code: int, **other: Any) -> dict[str, Any]:
    named = {"code": code, "reason": Code(code).reason if code in set(Code) else "new"}
    times = {"at_ms": SEEN_MS, "since_ms": SEEN_MS, "last_seen_ms": SEEN_MS}
    return {"type": type, "node": "n1", "device": "phone", "session": "s1", **named, **times, **other}


def offline(code: int, **other: Any) -> dict[str, Any]:
    usual = {"device": "tv", "at_ms": ENDED_MS, "since_ms": SEEN_MS - 600_000}
    return event("offline", code, **usual | other)


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (offline(201), f"nothing was received from it for 30.3 s: {ENDED}, deadline 22:13:50.300, ended "),
        (
            offline(200, device=""),
            "it did not return within its grace period: the default device, online since ",
        ),
        (offline(999), f"its last session ended as new (999): {ENDED}, ended 22:13:50.600 by node n1"),
        (offline(200, since_ms=SEEN_MS - 86_400_000), "online since 2023-11-13 22:13:20.300 UTC, last"),
        (offline(200, grace_ms=40_000), "by node n1; its grace period was extended to 40.0 s because "),
    ],
)
def test_an_end_is_explained_with_cause_and_times(last: dict[str, Any], text: str) -> None:
    explanation = why(OFFLINE, last, None, None, None, end={"deadline_ms": SEEN_MS + 30_000})
    assert explanation.startswith("offline since 2023-11-14 22:13:50.600 UTC because ")
    assert text in explanation


def test_an_end_by_a_sweep_names_the_node_that_died() -> None:
    text = why(OFFLINE, offline(Code.NODE_DOWN), None, None, None)
    assert "because the lease of its server expired" in text
    assert text.endswith(f"{ENDED}, ended 22:13:50.600 by the sweep of node n1")


KICKED: dict[str, Any] = {
    **{"node": "n1", "code": 301, "reason": "kicked", "at_ms": SEEN_MS + 2000, "last_packet_ms": SEEN_MS},
}


@pytest.mark.parametrize("is_alive", [True, False])
def test_an_end_that_redis_has_lost_is_explained_by_the_node_that_remembers_it(*, is_alive: bool) -> None:
    text = why(OFFLINE, offline(Code.NODE_DOWN), None, None, None, end=KICKED, is_node_alive=is_alive)
    assert text == (
        f"offline since 2023-11-14 22:13:22.300 UTC because an operator kicked it: {ENDED}, ended "
        "22:13:22.300 by node n1; Redis never got that end, or lost it, so it was reported as node_down "
        "22:13:50.600"
    )


def test_of_a_node_that_is_alive_no_lease_expired() -> None:
    text = why(OFFLINE, offline(Code.NODE_DOWN), None, None, None, is_node_alive=True)
    assert "lease" not in text
    assert "its session had ended before, and Redis never got that end, or lost it: device tv" in text


def test_each_reason_of_an_end_has_its_own_text() -> None:
    texts = {why(OFFLINE, offline(code), None, None, None) for code in _ENDS}
    assert len(texts) == len(_ENDS) >= 16


@pytest.mark.parametrize(
    ("missing", "begins_ms", "because"),
    [
        ("trimmed", SEEN_MS, f"no longer in the stream, which begins at {AT}"),
        ("trimmed", None, "which is empty"),
        ("not_kept", None, "Redis does not remember the event"),
        ("not_found", SEEN_MS, "erased, or Redis has lost it"),
        ("redis", None, "Redis could not be asked for the event"),
    ],
)
def test_the_reason_of_a_missing_event_is_explained(
    missing: str, begins_ms: int | None, because: str
) -> None:
    text = why(OFFLINE, None, None, missing, begins_ms)
    assert text.startswith(f"offline, last seen {AT}; the reason is unknown: ")
    assert because in text
    assert because in why(shown("online"), None, None, missing, begins_ms)


def test_of_an_end_whose_event_was_trimmed_the_reason_is_known() -> None:
    state = {**OFFLINE, "since_ms": SEEN_MS, "reason": "logout"}
    text = why(state, None, None, "trimmed", SEEN_MS)
    assert text.startswith(
        f"offline since {AT} (logout), last seen {AT}; the event is no longer in the stream"
    )


def shown(status: str) -> dict[str, Any]:
    return {"status": status, "since_ms": SEEN_MS, "last_seen_ms": None, "id": "5-0", "sessions": []}


LOGGED_IN = f"device phone at node n1 logged in at {AT}"
LOGIN_EVENT = event("online", 1)


@pytest.mark.parametrize(
    ("status", "last", "began", "text"),
    [
        ("online", LOGIN_EVENT, None, LOGGED_IN),
        ("online", event("online", 2), None, "device phone at node n1 was registered again, after a sweep"),
        ("away", event("away", 3), LOGIN_EVENT, f"set by device phone at node n1; {LOGGED_IN}"),
        ("online", event("away", 4), LOGIN_EVENT, f"back, set by device phone at node n1; {LOGGED_IN}"),
        ("online", event("update", 5), LOGIN_EVENT, LOGGED_IN),
        ("away", event("away", 3), None, "device phone at node n1; the online event is unknown"),
        (
            "unknown",
            LOGIN_EVENT,
            None,
            f"({LOGGED_IN}), but the leases of all nodes with sessions have expired",
        ),
    ],
)
def test_an_online_user_is_explained_with_the_login(
    status: str, last: dict[str, Any], began: dict[str, Any] | None, text: str
) -> None:
    explanation = why(shown(status), last, began, None, None)
    assert explanation.startswith(f"{status}: online" if status == "unknown" else f"{status} since {AT}: ")
    assert text in explanation


@pytest.mark.parametrize(
    ("seconds", "text"), [(119.94, "119.9 s"), (120, "2.0 min"), (7200, "2.0 h"), (172_800, "2.0 days")]
)
def test_spans_use_the_natural_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


# Inconsistencies


def state(*sessions: tuple[str, str, str]) -> dict[str, Any]:
    """Return a state with these sessions: device, session, node."""
    return {"sessions": [{"device": d, "session": s, "node": n} for d, s, n in sessions]}


def row(node: str, status: str = "alive", answer: str = "answered") -> dict[str, Any]:
    return {"node": node, "status": status, "answer": answer, "version": "0.1.0"}


ON_RECORD = state(("", "s1", "n1"))
HERE = session("n1", "s1")
LOST = session("n1", "s1", link="lost", due_in_s=3.25, ends_as={"code": 200, "reason": "closed"})


@pytest.mark.parametrize("known", [ON_RECORD, None])
def test_consistent_or_unknown_sessions_need_no_note(known: dict[str, Any] | None) -> None:
    answers = {"n1": answer("n1", HERE)}
    assert notes(known, answers, [row("n1"), row("n2", "alive", "not_asked")]) == []
    assert not disagree(known, answers)
    assert is_on_record(known, HERE) is (None if known is None else True)


@pytest.mark.parametrize(
    ("known", "report", "disagrees", "note"),
    [
        (state(), answer("n1", HERE, waiting=12), True, "it is not written to Redis yet; 12"),
        (
            state(),
            answer("n1", session("n1", "s1", vouched=False)),
            True,
            "record: it is not registered until",
        ),
        (ON_RECORD, answer("n1", waiting=3), True, "its end is on the way (3 changes are queued there)"),
        (
            ON_RECORD,
            answer("n1", LOST),
            False,
            "session ends as closed in 3.2 s unless the client returns",
        ),
        (ON_RECORD, answer("n1", HERE, more=3), False, "node n1 has 3 more sessions of this user"),
    ],
)
def test_inconsistencies_are_noted(
    known: dict[str, Any], report: dict[str, Any], disagrees: bool, note: str
) -> None:
    (text,) = notes(known, {"n1": report}, [row("n1")])
    assert note in text
    assert disagree(known, {"n1": report}) is disagrees


@pytest.mark.parametrize(
    ("status", "outcome", "because"),
    [
        ("dead", "no_answer", "it is dead"),
        ("left", "no_answer", "it has drained and ended"),
        ("silent", "not_listening", "its lease has expired, and it does not listen"),
        ("gone", "no_answer", "no node of this name has a lease"),
        (
            "alive",
            "no_answer",
            "it is busy, receives too many questions, or",
        ),
    ],
)
def test_nodes_that_did_not_answer_are_noted_with_the_reason(status: str, outcome: str, because: str) -> None:
    known = state(("", "s1", "n2"), ("tv", "s2", "n2"), ("car", "s3", "n3"))
    (note,) = notes(known, {}, [row("n2", status, outcome)])
    assert note.startswith(f"node n2, which has the default device, device tv, did not answer: {because}")


def test_nodes_that_have_gone_share_a_note_unless_the_record_names_them() -> None:
    gone = [
        row(node, status, "no_answer") for node, status in {"n2": "left", "n3": "dead", "n4": "left"}.items()
    ]
    named, together = notes(state(("", "s1", "n2")), {}, gone)
    assert named.startswith("node n2, which has the default device, did not answer: it has drained")
    assert together == "2 departed or dead nodes without a session of this user did not answer"
