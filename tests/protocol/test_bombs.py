"""Input that claims to be large must cost nothing before it is."""

import tracemalloc
from collections.abc import Callable

import msgpack
import pytest

from presence.protocol import ProtocolError, decode

# 1,000 nested arrays: each alone claims fewer elements than the frame has bytes.
NESTED_CLAIMS = b"\x93\x02\x04\x82\xa2to\xa3bob\xa4body" + b"\xdc\x0f\xff" * 1000 + b"\x00" * 8000
MAPS_OF_CLAIMS = b"\x93\x02\x04\x82\xa2to\xa3bob\xa4body" + b"\xde\x0f\xff\xa1k" * 1000 + b"\x00" * 8000
DEEP = b"\x93\x02\x04\x82\xa2to\xa3bob\xa4body" + b"\x91" * 16_000 + b"\xc0"


def _peak_bytes(call: Callable[[bytes], object], body: bytes) -> int:
    """Return the peak memory of a refused call."""
    tracemalloc.start()
    try:
        with pytest.raises((ProtocolError, ValueError)):
            call(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", [NESTED_CLAIMS, MAPS_OF_CLAIMS, DEEP], ids=["arrays", "maps", "deep"])
def test_container_bombs_take_memory_in_proportion_to_the_frame(bomb: bytes) -> None:
    peak = _peak_bytes(decode, bomb)
    assert peak < 32 * 1024


@pytest.mark.skipif(
    msgpack.Unpacker.__module__ == "msgpack.fallback", reason="msgpack's pure Python does not allocate ahead"
)
def test_control_the_bomb_works_without_the_walk() -> None:
    peak = _peak_bytes(msgpack.unpackb, NESTED_CLAIMS)
    assert peak > 16 * 1024 * 1024


def test_widest_frame_of_tiny_values_is_accepted() -> None:
    body = b"\x93\x02\xc0\x82\xa2to\xa3bob\xa4body" + b"\xdc\x3f\x00" + b"\x00" * 0x3F00
    assert len(decode(body).payload["body"]) == 0x3F00
