"""Packets as JSON: the test vectors both ways, and texts that are no packet."""

import json

import pytest

from presence import protocol
from presence.protocol import HEADER_BYTES
from presence.transports.websocket_text import BadText, to_frame, to_text
from tests.protocol.vectors import GOOD


def test_every_packet_survives_as_json() -> None:
    for good in GOOD:
        text = to_text(good.frame[HEADER_BYTES:])
        assert protocol.decode(to_frame(text)[HEADER_BYTES:]) == good.packet, good.name
        assert isinstance(json.loads(text), list)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("[3]", b"\x91\x03"),
        (" [3 , 7]\n", b"\x92\x03\x07"),
        ('{"$bin": "00ff"}', b"\xc4\x02\x00\xff"),
        ('{"$$bin": "00ff"}', b"\x81\xa4$bin\xa400ff"),
        ('"\\u00e9"', b"\xa2\xc3\xa9"),
        ("18446744073709551615", b"\xcf" + b"\xff" * 8),
    ],
)
def test_json_becomes_a_frame(text: str, body: bytes) -> None:
    assert to_frame(text) == len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[3",
        "[3] [3]",
        "[NaN]",
        "[-Infinity]",
        '["\\ud800"]',
        '{"$bin": 5}',
        '{"$bin": "0"}',
        "[18446744073709551616]",
        "[" * 8000,
        "[" * 8000 + "]" * 8000,
        "9" * 5000,
    ],
    ids=lambda text: text[:20],
)
def test_what_no_frame_can_have_is_refused(text: str) -> None:
    with pytest.raises(BadText, match="one packet as JSON"):
        to_frame(text)
