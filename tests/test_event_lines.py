"""Entries of the streams as plain data."""

from presence.event_lines import entry_of, entry_values, number
from presence.subscriber.events import Entry, Gap


def test_numbers_are_numbers_and_texts_are_texts() -> None:
    entry = Entry(3, "5-1", {"type": "online", "code": "1", "at_ms": "7", "uid": "12", "since_id": "4-0"})
    assert entry_values(entry) == {
        **{"id": "5-1", "shard": 3, "type": "online", "code": 1, "at_ms": 7},
        **{"uid": "12", "since_id": "4-0"},
    }


def test_what_a_client_says_is_data_and_what_is_damaged_is_text() -> None:
    assert entry_values(Entry(0, "1-0", {"meta": '{"a":1}'}))["meta"] == {"a": 1}
    assert entry_values(Entry(0, "1-0", {"meta": '{"a"'}))["meta"] == '{"a"'


def test_a_number_too_long_for_one_stays_a_text() -> None:
    assert number("-12") == -12
    assert number("9" * 20) == "9" * 20
    assert number("٣") == "٣"


def test_a_gap_that_was_found_looks_like_one_that_was_written() -> None:
    assert entry_of(Gap(2, "5-1", "trimmed")) == Entry(2, "5-1", {"type": "gap", "reason": "trimmed"})
    assert entry_values(entry_of(Gap(2, "5-1", "dropped", dropped=7)))["dropped"] == 7
