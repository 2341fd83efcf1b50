"""A client's metadata survive their way through Redis."""

import pytest

from presence import protocol
from presence.common import meta_json
from presence.subscriber.events import Entry, Gap, entry_values, gap_entry, parsed_number

MAPS = [
    {},
    {"app": "3.1", "class": "phone", "text": "im Zug, bis später"},
    {"n": -5, "big": 2**64 - 1, "small": -(2**63), "half": 0.5, "whole": 1.0, "yes": True, "none": None},
    {"raw": b"\x00\xff", "list": [b"", [1, {"deep": b"x"}]], "empty": {}},
    {"": ""},
    {"$bin": "00"},
    {"$bin": b"\x01"},
    {"$": {"$$bin": {"$int": 1}}},
    {"$bin": 1, "other": 2},
    {"line": "\n\0 \u2028"},
    {"del": "\x7f \\u007f"},
]


@pytest.mark.parametrize("given", MAPS, ids=str)
def test_a_map_survives_a_round_trip(given: dict[str, object]) -> None:
    back = meta_json.from_text(meta_json.to_text(given))
    assert back == given
    assert protocol.encode(protocol.update(meta=back)) == protocol.encode(protocol.update(meta=given))


def test_the_character_del_is_escaped_as_redis_would_do() -> None:
    assert meta_json.to_text({"m": "\x7f"}) == '{"m":"\\u007f"}'


def test_an_empty_map_is_the_empty_text() -> None:
    assert meta_json.to_text({}) == ""
    assert meta_json.from_text("") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "must be a map"),
        ("1", "must be a map"),
        ('{"$bin":"00"}', "must be a map"),
        ("{", "Expecting property name"),
        ('{"a":{"$bin":"x"}}', "non-hexadecimal"),
        ('{"a":{"$bin":1}}', "must hold hex"),
    ],
)
def test_an_invalid_text_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        meta_json.from_text(text)


# Entries as plain data


def test_numbers_are_numbers_and_texts_are_texts() -> None:
    entry = Entry(3, "5-1", {"type": "online", "code": "1", "at_ms": "7", "uid": "12", "since_id": "4-0"})
    assert entry_values(entry) == {
        **{"id": "5-1", "shard": 3, "type": "online", "code": 1, "at_ms": 7},
        **{"uid": "12", "since_id": "4-0"},
    }
    assert (parsed_number("-12"), parsed_number("9" * 20), parsed_number("٣")) == (-12, "9" * 20, "٣")


@pytest.mark.parametrize(("text", "expected"), [('{"a":1}', {"a": 1}), ('{"a"', '{"a"')])
def test_metadata_is_data_and_damaged_metadata_is_text(text: str, expected: object) -> None:
    assert entry_values(Entry(0, "1-0", {"meta": text}))["meta"] == expected


def test_a_detected_gap_has_the_form_of_a_written_one() -> None:
    assert gap_entry(Gap(2, "5-1", "trimmed")) == Entry(2, "5-1", {"type": "gap", "reason": "trimmed"})
    assert entry_values(gap_entry(Gap(2, "5-1", "dropped", dropped=7)))["dropped"] == 7
