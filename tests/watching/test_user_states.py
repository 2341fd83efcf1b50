"""Parsing of entries into the states that watchers get."""

import json

import msgpack
import pytest

from presence.watching.user_states import (
    UserEvent,
    WatchedDevice,
    WatchedState,
    id_of,
    read_change,
    read_entry,
    read_hint,
)

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


CHANGE = ["9-1", "offline", "logout", "offline", "7", "since_ms", "5", "last_seen_ms", "6", "at_ms", "7"]


def test_a_change_of_a_shard_gives_the_state_of_a_user() -> None:
    state = WatchedState("offline", 7, 6, "9-1", reason="logout", devices=())
    assert read_change("ann", msgpack.packb(CHANGE)) == UserEvent("ann", (9, 1), state, "logout")


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x91" * 5_000,
        *map(
            msgpack.packb, (CHANGE[:4], CHANGE[:-1], [7, *CHANGE[1:]], [*CHANGE[:-1], []], [*CHANGE, {}, 1])
        ),
        msgpack.packb(["9-1", "gap", *CHANGE[2:]]),
        1,
    ],
)
def test_unknown_changes_are_ignored(packed: bytes) -> None:
    assert read_change("ann", packed) is None


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


@pytest.mark.parametrize(
    "state",
    [
        WatchedState("offline", 7, 6, "9-1", reason="logout", devices=()),
        WatchedState("away", 7, None, "9-1", '{"a":1}', devices=(WatchedDevice("", "away", 7, "", ""),)),
    ],
)
def test_a_user_who_hides_when_they_were_active_is_shown_without_times(state: WatchedState) -> None:
    shown = state._replace(hides_times=True).shown()
    assert (shown["since_ms"], shown["last_seen_ms"], shown["id"]) == (None, None, None)
    assert "reason" not in shown
    assert [each["since_ms"] for each in shown["devices"]] == [0] * len(state.devices or ())
    same = {name: value for name, value in state.shown().items() if name in {"status", "meta"}}
    assert same.items() <= shown.items()


@pytest.mark.parametrize("kind", ["online", "offline", "away", "update", "device"])
def test_an_entry_tells_whether_its_user_hides_the_times(kind: str) -> None:
    for hide in ({}, {"hide": "last_seen"}):
        event = read_entry("9-1", COMMON | {"type": kind} | hide)
        assert event is not None
        assert event.state.hides_times is bool(hide)


def test_who_hides_the_times_becomes_invisible_as_if_by_a_logout() -> None:
    event = read_entry(
        "9-1", COMMON | {"type": "update", "invisible": "1", "public": "", "hide": "last_seen"}
    )
    assert event is not None
    assert (event.state, event.reason) == (WatchedState("offline", devices=()), "logout")


@pytest.mark.parametrize("reason", ["kicked", "banned"])
def test_a_user_whom_an_operator_ends_is_shown_exactly_like_one_who_logs_out(reason: str) -> None:
    ended = WatchedState("offline", 12_000, 3_000, "12000-0", reason=reason)
    logged_out = WatchedState("offline", 12_000, 12_000, "12000-0", reason="logout")
    assert ended.shown() == logged_out.shown()
