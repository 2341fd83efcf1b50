"""Typed events from the entries of a stream."""

import pytest

from presence.subscriber import Away, Entry, Gap, Offline, Online, Updated
from presence.subscriber.events import decode, decode_transition, id_order, read_entry
from tests.subscriber.streams import AT_MS, event_fields


def entry(**fields: object) -> Entry:
    return Entry(3, "7-1", {name: str(value) for name, value in fields.items()}, 2)


def test_online_event_has_every_field() -> None:
    assert decode(entry(**event_fields("ann"))) == Online(
        shard=3,
        id="7-1",
        uid="ann",
        device="",
        session="s1",
        node="n1",
        code=1,
        reason="login",
        at_ms=AT_MS + 2,
        since_ms=AT_MS,
        last_seen_ms=AT_MS + 1,
        deliveries=2,
    )


def test_offline_event_names_the_online_event_that_it_ends() -> None:
    event = decode(entry(**event_fields("ann", "offline")))
    assert isinstance(event, Offline)
    assert (event.since_id, event.code, event.reason) == ("1-0", 201, "idle_timeout")


def test_an_online_event_may_say_how_the_user_shows_himself() -> None:
    event = decode(entry(**event_fields("ann"), status="away", meta='{"v":2}'))
    assert isinstance(event, Online)
    assert (event.status, event.meta) == ("away", {"v": 2})
    assert len({event, decode(entry(**event_fields("ann")))}) == 2, "events can be in sets"


def test_an_offline_event_says_how_long_a_return_was_waited_for_if_that_was_lengthened() -> None:
    event = decode(entry(**event_fields("ann", "offline"), grace_ms=12_000))
    assert isinstance(event, Offline)
    assert event.grace_ms == 12_000


def test_away_event_has_every_field() -> None:
    assert decode(entry(**event_fields("ann", "away"))) == Away(
        shard=3,
        id="7-1",
        uid="ann",
        device="",
        session="s1",
        node="n1",
        code=3,
        reason="away",
        at_ms=AT_MS + 2,
        since_ms=AT_MS,
        last_seen_ms=AT_MS + 1,
        since_id="1-0",
        status="away",
        deliveries=2,
        meta={"a": b"\0"},
    )


def test_updated_event_says_since_when_the_status_stands() -> None:
    event = decode(entry(**event_fields("ann", "update")))
    assert isinstance(event, Updated)
    assert (event.code, event.status, event.status_ms, event.meta) == (5, "away", AT_MS + 2, {"a": b"\0"})


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 10_000, '{"a":{"$bin":"zz"}}'])
def test_damaged_meta_counts_as_absent(text: str) -> None:
    event = decode(entry(**event_fields("ann"), meta=text))
    assert isinstance(event, Online)
    assert event.meta == {}


@pytest.mark.parametrize(("kind", "is_one"), [("online", True), ("offline", True), ("away", False)])
def test_transitions_are_what_changes_that_a_user_is_online(kind: str, is_one: bool) -> None:
    assert (decode_transition(entry(**event_fields("ann", kind))) is not None) is is_one


def test_gap_of_the_server_says_what_was_dropped() -> None:
    gap = decode(entry(v=1, type="gap", node="n1", dropped=12, from_ms=5, to_ms=9))
    assert gap == Gap(3, "7-1", "dropped", 12, 5, 9, deliveries=2)


@pytest.mark.parametrize("spoiled", [{"type": "away"}, {"at_ms": "soon"}, {"code": ""}])
def test_what_is_of_unknown_form_is_no_event(spoiled: dict[str, str]) -> None:
    assert decode(entry(**{**event_fields("ann"), **spoiled})) is None


def test_entry_without_type_is_no_event() -> None:
    assert decode(entry(uid="ann")) is None


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert read_entry(0, (b"1-0", {b"uid": b"\xff\xfe"})).fields == {"uid": r"\xff\xfe"}


def test_ids_are_ordered_as_numbers() -> None:
    assert sorted(["10-2", "9-0", "10-10", "10"], key=id_order) == ["9-0", "10", "10-2", "10-10"]
