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


ON_RECORD = state(("", "s1", "n1"))
HERE = session("n1", "s1")
LOST = session("n1", "s1", link="lost", due_in_s=3.25, ends_as={"code": 200, "reason": "closed"})


@pytest.mark.parametrize("known", [ON_RECORD, None])
def test_what_fits_together_or_is_not_known_needs_no_note(known: dict[str, Any] | None) -> None:
    told = {"n1": answer("n1", HERE)}
    assert notes(known, told, [row("n1"), row("n2", "alive", "not_asked")]) == []
    assert not disagree(known, told)
    assert is_on_record(known, HERE) is (None if known is None else True)


@pytest.mark.parametrize(("name", "device"), [("s2", ""), ("s1", "tv")])
def test_a_session_is_on_record_by_device_and_id(name: str, device: str) -> None:
    assert is_on_record(ON_RECORD, session("n1", name, device)) is False


@pytest.mark.parametrize(
    ("known", "told", "disagrees", "note"),
    [
        (
            state(),
            answer("n1", session("n1", "s1", "tv"), waiting=12),
            True,
            "node n1 has a session of device tv that is not on record: Redis has not been told yet; 12",
        ),
        (
            state(),
            answer("n1", session("n1", "s1", vouched=False)),
            True,
            "node n1 has a session of the default device that is not on record: Redis is not told of",
        ),
        (
            ON_RECORD,
            answer("n1", waiting=3),
            True,
            "the record names a session of the default device at node n1, which does not have it: its end is "
            "on the way (3 changes wait there)",
        ),
        (
            ON_RECORD,
            answer("n1", LOST),
            False,
            "the default device at node n1 has lost its connection: its session ends as closed in 3.2 s",
        ),
        (ON_RECORD, answer("n1", HERE, more=3), False, "node n1 has 3 more sessions of this user"),
    ],
)
def test_what_does_not_fit_is_told(
    known: dict[str, Any], told: dict[str, Any], disagrees: bool, note: str
) -> None:
    (said,) = notes(known, {"n1": told}, [row("n1")])
    assert said.startswith(note)
    assert disagree(known, {"n1": told}) is disagrees


@pytest.mark.parametrize(
    ("status", "said", "because"),
    [
        ("dead", "no_answer", "it is dead"),
        ("dead", "not_listening", "it is dead"),
        ("left", "no_answer", "it has drained and ended"),
        ("silent", "no_answer", "its lease has ended"),
        ("silent", "not_listening", "its lease has ended, and it does not listen"),
        ("gone", "no_answer", "no node of this name has a lease"),
        ("gone", "not_listening", "no node of this name has a lease"),
        ("alive", "not_listening", "it does not listen"),
        ("alive", "no_answer", "it is busy, asked too much, or too old to know the question (version 0.1.0)"),
    ],
)
def test_who_did_not_answer_and_why(status: str, said: str, because: str) -> None:
    silent = row("n2", status, said)
    (note,) = notes(state(), {}, [silent])
    assert note.startswith(f"node n2 did not answer: {because}")
    (note,) = notes(state(("", "s1", "n2"), ("tv", "s2", "n2"), ("car", "s3", "n3")), {}, [silent])
    assert note.startswith(f"node n2, which has the default device, device tv, did not answer: {because}")
