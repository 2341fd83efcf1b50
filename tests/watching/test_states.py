"""What entries say, as others are shown it."""

import json

import pytest

from presence.watching.states import State, id_of, read_entry, read_hint

COMMON = {"uid": "ann", "since_ms": "5", "last_seen_ms": "6", "at_ms": "7", "reason": "login"}


def state(**fields: str) -> State:
    found = read_entry("9-1", {**COMMON, **fields})
    assert found is not None
    assert (found.uid, found.id, found.reason) == ("ann", (9, 1), "login")
    return found.state


def test_who_comes_is_online_since_the_period_began() -> None:
    assert state(type="online") == State("online", 5, None, "9-1")


def test_who_comes_away_is_away() -> None:
    assert state(type="online", status="away", meta="{}") == State("away", 5, None, "9-1", "{}")


def test_who_goes_was_last_seen() -> None:
    assert state(type="offline") == State("offline", 7, 6, "9-1")


def test_away_stands_since_it_was_said() -> None:
    assert state(type="away", status="away", status_ms="8") == State("away", 8, None, "9-1")


def test_an_update_changes_what_a_client_says_of_itself() -> None:
    found = state(type="update", status="online", status_ms="5", meta='{"a":1}')
    assert found.shown() == {
        "status": "online",
        "since_ms": 5,
        "last_seen_ms": None,
        "id": "9-1",
        "meta": {"a": 1},
    }


def test_a_hint_says_what_the_entry_says() -> None:
    fields = {
        "type": "offline",
        "uid": "ann",
        "since_ms": 5,
        "last_seen_ms": 6,
        "at_ms": 7,
        "reason": "login",
    }
    assert read_hint(json.dumps({**fields, "id": "9-1"})) == read_entry("9-1", {**COMMON, "type": "offline"})


HINT = {"id": "1-1", "type": "offline", "uid": "ann", "since_ms": 5, "last_seen_ms": 6, "at_ms": 7}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"id":"1-1","type":"gap"}',
        b'{"type":"online","uid":"a"}',
        b'{"a":' + b"[" * 200_000,
        json.dumps(HINT | {"uid": []}),
        json.dumps(HINT | {"uid": {}}),
        json.dumps(HINT | {"since_ms": 1e999}),
        json.dumps(HINT | {"last_seen_ms": 1e999}),
        json.dumps(HINT | {"at_ms": []}),
        json.dumps(HINT | {"id": 7}),
        json.dumps(HINT | {"id": []}),
        json.dumps(HINT | {"type": []}),
    ],
)
def test_what_is_of_no_kind_known_is_passed_over(text: bytes) -> None:
    assert read_hint(text) is None


@pytest.mark.parametrize("text", ["[", '{"a":' + "[" * 200_000])
def test_what_no_server_wrote_is_no_meta(text: str) -> None:
    assert "meta" not in State("online", 1, None, "1-0", text).shown()


@pytest.mark.parametrize("reason", ["\ud800", "x" * 1_000_000, "\u00e4"])
def test_a_reason_that_no_packet_could_tell_is_none(reason: str) -> None:
    heard = read_hint(json.dumps(HINT | {"reason": reason}))
    assert heard is not None
    assert heard.reason == "node_down"


def test_ids_are_compared_as_numbers() -> None:
    assert id_of("9-10") > id_of("9-9")
    assert id_of("10-0") > id_of("9-9")
