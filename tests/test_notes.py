"""What does not fit together about a user is told, and nothing else."""

from typing import Any

import pytest

from presence.notes import disagree, is_on_record, notes
from tests.nodes_that_answer import answer, session


def state(*sessions: tuple[str, str, str]) -> dict[str, Any]:
    """Return a state that names sessions: device, session, node."""
    return {"sessions": [{"device": d, "session": s, "node": n} for d, s, n in sessions]}


def row(node: str, status: str = "alive", answer: str = "answered") -> dict[str, Any]:
    return {"node": node, "status": status, "answer": answer, "version": "0.1.0"}


HERE = {"n1": answer("n1", session("n1", "s1"))}


def test_what_fits_together_needs_no_note() -> None:
    assert notes(state(("", "s1", "n1")), HERE, [row("n1")]) == []
    assert not disagree(state(("", "s1", "n1")), HERE)


def test_without_redis_nobody_says_what_is_on_record() -> None:
    assert notes(None, HERE, [row("n1", "unknown")]) == []
    assert not disagree(None, HERE)
    assert is_on_record(None, session("n1", "s1")) is None


@pytest.mark.parametrize(
    ("name", "device", "there"), [("s1", "", True), ("s2", "", False), ("s1", "tv", False)]
)
def test_a_session_is_on_record_by_device_and_id(name: str, device: str, there: bool) -> None:
    assert is_on_record(state(("", "s1", "n1")), session("n1", name, device)) is there


def test_a_session_that_redis_does_not_know_yet() -> None:
    told = {"n1": answer("n1", session("n1", "s1", "tv"), waiting=12)}
    assert disagree(state(), told)
    assert notes(state(), told, [row("n1")]) == [
        "node n1 has a session of device tv that is not on record: Redis has not been told yet; "
        "12 changes wait there"
    ]


def test_a_session_that_nobody_vouches_for() -> None:
    told = {"n1": answer("n1", session("n1", "s1", vouched=False))}
    assert notes(state(), told, [row("n1")]) == [
        "node n1 has a session of the default device that is not on record: Redis is not told of it until "
        "its client, silent for too long, is heard again"
    ]


def test_a_session_that_its_node_does_not_have() -> None:
    named = state(("", "s1", "n1"))
    told = {"n1": answer("n1", waiting=3)}
    assert disagree(named, told)
    assert notes(named, told, [row("n1")]) == [
        "the record names a session of the default device at node n1, which does not have it: its end is on "
        "the way (3 changes wait there), or is made up for soon"
    ]


def test_a_lost_connection_and_what_is_left_of_its_grace() -> None:
    lost = session("n1", "s1", link="lost", due_in_s=3.25, ends_as={"code": 200, "reason": "closed"})
    assert notes(state(("", "s1", "n1")), {"n1": answer("n1", lost)}, [row("n1")]) == [
        "the default device at node n1 has lost its connection: its session ends as closed in 3.2 s unless "
        "it comes back"
    ]


def test_sessions_that_were_left_out() -> None:
    told = {"n1": answer("n1", session("n1", "s1"), more=3)}
    assert notes(state(("", "s1", "n1")), told, [row("n1")]) == ["node n1 has 3 more sessions of this user"]


@pytest.mark.parametrize(
    ("status", "said", "because"),
    [
        ("dead", "no_answer", "it is dead, and others end its sessions"),
        ("dead", "not_listening", "it is dead, and others end its sessions"),
        ("silent", "no_answer", "its lease has ended"),
        ("silent", "not_listening", "its lease has ended, and it does not listen"),
        ("gone", "no_answer", "no node of this name has a lease"),
        ("gone", "not_listening", "no node of this name has a lease"),
        (
            "alive",
            "not_listening",
            "it does not listen: it starts or stops, or its connection to Redis broke",
        ),
        (
            "alive",
            "no_answer",
            "it is busy, asked too much, or too old to know the question (version 0.1.0)",
        ),
    ],
)
def test_who_did_not_answer_and_why(status: str, said: str, because: str) -> None:
    silent = row("n2", status, said)
    assert notes(state(), {}, [silent]) == [f"node n2 did not answer: {because}"]
    named = state(("", "s1", "n2"), ("tv", "s2", "n2"), ("car", "s3", "n3"))
    assert notes(named, {}, [silent]) == [
        f"node n2, which has the default device, device tv, did not answer: {because}"
    ]


def test_who_was_not_asked_is_not_blamed() -> None:
    assert notes(state(), {}, [row("n2", "alive", "not_asked")]) == []
