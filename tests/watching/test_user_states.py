"""Parsing of entries into the states that watchers get."""

import json

import pytest

from presence.watching.user_states import UserEvent, WatchedState, id_of, read_entry, read_hint

COMMON = {"uid": "ann", "since_ms": "5", "last_seen_ms": "6", "at_ms": "7", "reason": "login"}


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"type": "online"}, WatchedState("online", 5, None, "9-1")),
        ({"type": "online", "status": "away", "meta": "{}"}, WatchedState("away", 5, None, "9-1", "{}")),
        ({"type": "offline"}, WatchedState("offline", 7, 6, "9-1", reason="login", devices=())),
        ({"type": "away", "status": "away", "status_ms": "8"}, WatchedState("away", 8, None, "9-1")),
        (
            {"type": "update", "status": "online", "status_ms": "5", "meta": '{"a":1}'},
            WatchedState("online", 5, None, "9-1", '{"a":1}'),
        ),
    ],
)
def test_an_entry_and_a_hint_give_the_state_of_a_user(fields: dict[str, str], state: WatchedState) -> None:
    found = read_entry("9-1", COMMON | fields)
    assert found == UserEvent("ann", (9, 1), state, "login")
    numbers = {name: int(text) for name, text in COMMON.items() if text.isdigit()}
    assert read_hint(json.dumps(COMMON | fields | numbers | {"id": "9-1"})) == found


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
        json.dumps(HINT | {"since_ms": 1e999}),
        json.dumps(HINT | {"at_ms": []}),
        json.dumps(HINT | {"id": 7}),
    ],
)
def test_unknown_entries_are_ignored(text: bytes) -> None:
    assert read_hint(text) is None


@pytest.mark.parametrize("text", ["[", '{"a":' + "[" * 200_000])
def test_invalid_meta_are_dropped(text: str) -> None:
    assert "meta" not in WatchedState("online", 1, None, "1-0", text).shown()


@pytest.mark.parametrize("reason", ["\ud800", "x" * 1_000_000, "\u00e4"])
def test_a_reason_that_no_packet_can_hold_is_dropped(reason: str) -> None:
    entry = read_hint(json.dumps(HINT | {"reason": reason}))
    assert entry is not None
    assert entry.reason == "node_down"


def test_ids_are_compared_as_numbers() -> None:
    assert id_of("9-10") > id_of("9-9")
    assert id_of("10-0") > id_of("9-9")


@pytest.mark.parametrize("reason", ["kicked", "banned"])
def test_a_user_whom_an_operator_ends_is_shown_exactly_like_one_who_logs_out(reason: str) -> None:
    ended = WatchedState("offline", 12_000, 3_000, "12000-0", reason=reason)
    logged_out = WatchedState("offline", 12_000, 12_000, "12000-0", reason="logout")
    assert ended.shown() == logged_out.shown()
