"""What a client says of itself survives its way through Redis, whatever it is."""

import pytest

import protocol
from presence import meta

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
]


@pytest.mark.parametrize("given", MAPS, ids=str)
def test_a_map_comes_back_as_it_was(given: dict[str, object]) -> None:
    back = meta.from_text(meta.to_text(given))
    assert back == given
    assert protocol.encode(protocol.update(meta=back)) == protocol.encode(protocol.update(meta=given))


def test_nothing_is_the_empty_text() -> None:
    assert meta.to_text({}) == ""
    assert meta.from_text("") == {}


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
def test_a_text_that_is_none_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        meta.from_text(text)
