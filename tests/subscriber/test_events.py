"""Typed events from the entries of a stream."""

from collections.abc import Mapping
from typing import Any

import pytest

from presence.subscriber import Away, Entry, Event, Gap, Moved, Offline, Online, Updated
from presence.subscriber.events import decode, decode_transition, entry_values, id_order, read_entry
from tests.subscriber.streams import AT_MS, event_fields

COMMON: dict[str, Any] = {
    **{"shard": 3, "id": "7-1", "uid": "ann", "device": "", "session": "s1", "node": "n1"},
    **{"at_ms": AT_MS + 2, "since_ms": AT_MS, "last_seen_ms": AT_MS + 1, "deliveries": 2},
}
ANN = event_fields("ann")
ONLINE = Online(**COMMON, code=1, reason="login")
ENDED: dict[str, Any] = {**COMMON, "code": 201, "reason": "idle_timeout", "since_id": "1-0"}
MOVED: dict[str, Any] = {
    **COMMON,
    **{"code": 8, "reason": "rooms", "since_id": "1-0", "status": "away", "status_ms": AT_MS + 2},
}
SHOWN: dict[str, Any] = {**COMMON, "since_id": "1-0", "status": "away", "meta": {"a": b"\0"}}


def entry(fields: Mapping[Any, Any]) -> Entry:
    return Entry(3, "7-1", {name: str(value) for name, value in fields.items()}, 2)


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        (ANN, ONLINE),
        (
            ANN | {"status": "away", "meta": '{"v":2}'},
            Online(**COMMON, code=1, reason="login", status="away", meta={"v": 2}),
        ),
        (event_fields("ann", "offline"), Offline(**ENDED)),
        (event_fields("ann", "offline") | {"grace_ms": 12_000}, Offline(**ENDED, grace_ms=12_000)),
        (ANN | {"rooms": "hall lobby"}, Online(**COMMON, code=1, reason="login", rooms=("hall", "lobby"))),
        (event_fields("ann", "offline") | {"rooms": "hall"}, Offline(**ENDED, rooms=("hall",))),
        (
            event_fields("ann", "rooms") | {"rooms": "hall", "rooms_left": "attic lobby"},
            Moved(**MOVED, rooms=("hall",), left=("attic", "lobby")),
        ),
        (event_fields("ann", "rooms") | {"invisible": 1}, Moved(**MOVED, rooms=(), left=(), invisible=True)),
        (event_fields("ann", "away"), Away(**SHOWN, code=3, reason="away")),
        (event_fields("ann", "update"), Updated(**SHOWN, code=5, reason="updated", status_ms=AT_MS + 2)),
        (
            {"v": 1, "type": "gap", "node": "n1", "dropped": 12, "from_ms": 5, "to_ms": 9},
            Gap(3, "7-1", "dropped", 12, 5, 9, deliveries=2),
        ),
        *((ANN | {"meta": text}, ONLINE) for text in ("{", "[1]", "[" * 10_000, '{"a":{"$bin":"zz"}}')),
        *((ANN | spoiled, None) for spoiled in ({"type": "away"}, {"at_ms": "soon"}, {"code": ""})),
        ({"uid": "ann"}, None),
    ],
)
def test_an_entry_is_a_typed_event_or_none(fields: Mapping[Any, Any], event: Event | None) -> None:
    assert decode(entry(fields)) == event
    assert len({event, ONLINE}) == 2 - (event == ONLINE), "events can be in sets"


def test_rooms_are_lists_in_json() -> None:
    values = entry_values(entry({"type": "rooms", "rooms": "hall lobby", "rooms_left": "attic"}))
    assert values == {
        **{"id": "7-1", "shard": 3, "type": "rooms"},
        **{"rooms": ["hall", "lobby"], "rooms_left": ["attic"]},
    }


@pytest.mark.parametrize(
    ("kind", "is_one"), [("online", True), ("offline", True), ("away", False), ("rooms", False)]
)
def test_transitions_are_online_and_offline_events_only(kind: str, is_one: bool) -> None:
    assert (decode_transition(entry(event_fields("ann", kind))) is not None) is is_one


def test_invalid_utf_8_is_escaped() -> None:
    assert read_entry(0, (b"1-0", {b"uid": b"\xff\xfe"})).fields == {"uid": r"\xff\xfe"}


def test_ids_are_ordered_as_numbers() -> None:
    assert sorted(["10-2", "9-0", "10-10", "10"], key=id_order) == ["9-0", "10", "10-2", "10-10"]
