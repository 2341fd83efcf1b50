"""Conditions of lists of users online."""

import json
from typing import Any

import pytest

from presence.store.records import online_state
from presence.store.user_filter import UserFilter


def state_of(*sessions: dict[str, Any]) -> dict[str, Any]:
    by_device = {
        f"d{number}": {"session": "s", "node": "n1", "login_ms": number, **fields}
        for number, fields in enumerate(sessions)
    }
    state = online_state(json.dumps({"id": "5-1", "since_ms": 1, "sessions": by_device}).encode())
    assert state is not None
    return state


PHONE, WEB = {"class": "phone", "node": "n1"}, {"class": "web", "node": "n2"}


@pytest.mark.parametrize(
    ("wanted", "has"),
    [
        (UserFilter(), True),
        (UserFilter(device_class="web"), True),
        (UserFilter(device_class="watch"), False),
        (UserFilter(node="n1"), True),
        (UserFilter(node="n3"), False),
        (UserFilter(device_class="phone", node="n1"), True),
        (UserFilter(device_class="phone", node="n2"), False),  # not the same session
    ],
)
def test_a_session_meets_class_and_node(wanted: UserFilter, *, has: bool) -> None:
    assert wanted.has_session(state_of(PHONE, WEB)) is has


def test_a_session_without_a_class_has_none() -> None:
    assert not UserFilter(device_class="phone").has_session(state_of({}))


@pytest.mark.parametrize(
    ("session", "status", "has"),
    [
        ({}, "online", True),
        ({}, "away", False),
        ({"away": True}, "away", True),
        ({"status": "dnd"}, "dnd", True),
        ({"status": "invisible"}, "invisible", True),
        ({"status": "invisible"}, "online", True),  # as its state says
        ({}, "invisible", False),
    ],
)
def test_the_status_is_that_of_the_state(session: dict[str, Any], status: str, *, has: bool) -> None:
    assert UserFilter(status=status).has_status(state_of(session)) is has


def test_a_state_is_unknown_if_it_says_so() -> None:
    assert UserFilter(status="unknown").has_status({"status": "unknown"})


@pytest.mark.parametrize(
    ("prefix", "pattern"), [(None, None), ("ann", "ann*"), ("a*b", r"a\*b*"), (r"[a?]\x", r"\[a\?\]\\x*")]
)
def test_a_prefix_is_no_pattern(prefix: str | None, pattern: str | None) -> None:
    assert UserFilter(uid_prefix=prefix).pattern == pattern


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (UserFilter(node="n1"), True),
        (UserFilter(node="n2"), False),
        (UserFilter(device_class="phone", node="n2"), False),
        (UserFilter(device_class='a"b'), True),  # as JSON it looks otherwise
    ],
)
def test_a_record_without_the_name_is_not_decoded(wanted: UserFilter, *, may: bool) -> None:
    assert wanted.may_match(b'{"sessions":{"":{"node":"n1","class":"phone"}}}') is may


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"uid_prefix": "a b"}, "uid_prefix"),
        ({"uid_prefix": ""}, "uid_prefix"),
        ({"device_class": "x" * 33}, "class"),
        ({"node": ""}, "node"),
        ({"status": "offline"}, "status is none of"),
    ],
)
def test_what_no_user_can_have_is_refused(values: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        UserFilter(**values)
