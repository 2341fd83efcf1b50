"""Headers of the PROXY protocol, version 2: what they say, and what is none."""

import socket
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from presence.transports.proxy_v2 import (
    FIXED_BYTES,
    HEADER_MAX_BYTES,
    SIGNATURE,
    HeaderError,
    client,
    missing,
)
from tests.transports.proxies import LOCAL, PROXY, TCP4, TCP6, UNIX, header, of_client

# Written out after section 2.2: from 203.0.113.7, port 51234, to 198.51.100.2, port 443.
WRITTEN_OUT = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c cb007107 c6336402 c822 01bb")


def parsed(data: bytes) -> str | None:
    """Read a header as a connection is read: as many bytes as are missing, and no more."""
    begun = bytearray()
    while wanted := missing(begun):
        piece = data[len(begun) : len(begun) + wanted]
        if not piece:
            raise EOFError
        begun += piece
    return client(begun)


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (WRITTEN_OUT, "203.0.113.7"),
        (of_client("192.0.2.1"), "192.0.2.1"),
        (of_client("2001:db8::7"), "2001:db8::7"),
        (of_client("192.0.2.1", tlvs=b"\x01\x00\x02h2\x04\x00\x01\0"), "192.0.2.1"),
        (header(LOCAL, 0x00, b""), None),
        (header(LOCAL, TCP4, b"\x7f\0\0\1" * 2 + b"\0" * 4), None),
        (header(LOCAL, 0xFF, b""), None),
        (header(PROXY, 0x00, b""), None),
        (header(PROXY, 0x00, b"\x04\x00\x01\0"), None),
        (header(PROXY, UNIX, b"/run/client".ljust(108, b"\0") + bytes(108)), None),
    ],
)
def test_a_header_names_the_client_or_leaves_it_to_the_kernel(data: bytes, address: str | None) -> None:
    assert parsed(data + b"what the client says") == address


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\2\x91\3",
        b"\x16\x03\x01",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"\r\n\r\n\0\r\nQUIT\r",
        header(0x10, TCP4, bytes(12)),
        header(0x22, TCP4, bytes(12)),
        header(0x2F, TCP4, bytes(12)),
        header(PROXY, 0x12, bytes(12)),
        header(PROXY, 0x22, bytes(36)),
        header(PROXY, 0x41, bytes(12)),
        header(PROXY, TCP4, bytes(11)),
        header(PROXY, TCP6, bytes(35)),
        header(PROXY, UNIX, bytes(215)),
        header(PROXY, TCP4, bytes(HEADER_MAX_BYTES - FIXED_BYTES + 1)),
        header(PROXY, TCP4, bytes(65_535)),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(HeaderError):
        parsed(data)


def test_a_header_may_be_as_long_as_the_specification_says_and_no_longer() -> None:
    assert parsed(of_client("192.0.2.1", tlvs=bytes(HEADER_MAX_BYTES - FIXED_BYTES - 12))) == "192.0.2.1"
    with pytest.raises(HeaderError, match="537"):
        parsed(of_client("192.0.2.1", tlvs=bytes(HEADER_MAX_BYTES - FIXED_BYTES - 11)))


def test_a_length_that_is_too_large_is_refused_before_anything_behind_it_is_read() -> None:
    with pytest.raises(HeaderError):
        missing(header(PROXY, TCP4, bytes(65_535))[:FIXED_BYTES])


@pytest.mark.parametrize("size", range(1, FIXED_BYTES))
def test_a_wrong_byte_is_noticed_as_soon_as_it_is_here(size: int) -> None:
    begun = bytearray(WRITTEN_OUT[:size])
    assert missing(begun) == FIXED_BYTES - size
    if size <= len(SIGNATURE):
        begun[-1] ^= 1
        with pytest.raises(HeaderError):
            missing(begun)


@given(st.binary(max_size=600) | st.binary(max_size=600).map(SIGNATURE.__add__))
@example(WRITTEN_OUT)
def test_whatever_comes_is_a_header_or_is_refused(data: bytes) -> None:
    try:
        address = parsed(data)
    except (HeaderError, EOFError):
        return
    size = FIXED_BYTES + struct.unpack_from("!H", data, 14)[0]
    assert data.startswith(SIGNATURE)
    assert len(data) >= size
    if address is not None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        assert data[16:].startswith(socket.inet_pton(family, address))
