"""The PROXY protocol, version 2: a proxy's header names the client of a connection.

After "The PROXY protocol", versions 1 & 2, by Willy Tarreau (HAProxy), section 2.2. A header has 16 bytes (a
signature, version and command, family and transport, and the length of the rest), then addresses, and after
them extensions, which are skipped. `missing` and `client` read one, and are pure; `guests.py` uses them.

Headers are read only on connections from the networks of proxies. From anywhere else a header is malformed
input, because a client that could send one could claim any address. From a proxy it is required: without it
all clients would count as one. The received part of a header is kept in a buffer of at most 536 bytes; what
follows it stays in the kernel.

Tests: `tests/transports/test_proxied.py`.
"""

from ipaddress import IPv4Address, IPv6Address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES = 16
MAX_HEADER_BYTES = 536  # what every receiver must accept: one segment of any network holds it

_VERSION = 0x2
_LOCAL, _PROXY = 0x0, 0x1
# Bytes of the addresses and ports, by family and transport; no datagrams here.
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESSES_BYTES = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}


class HeaderError(Exception):
    """A connection of a proxy does not begin with a valid header; the message says what is wrong."""


def missing(begun: bytes | bytearray) -> int:
    """Return how many bytes to read next; 0 if the header is complete.

    Args:
        begun: the bytes of the header read so far.

    Raises:
        HeaderError: no header begins with them.
    """
    if not SIGNATURE.startswith(begun[: len(SIGNATURE)]):
        raise HeaderError("no header of the PROXY protocol, version 2")
    if len(begun) < FIXED_BYTES:
        return FIXED_BYTES - len(begun)
    version, command = begun[12] >> 4, begun[12] & 0xF
    if version != _VERSION or command not in {_LOCAL, _PROXY}:
        raise HeaderError(f"version and command are {begun[12]:#04x}")
    size = FIXED_BYTES + int.from_bytes(begun[14:16], "big")
    if size > MAX_HEADER_BYTES:
        raise HeaderError(f"the header has {size} bytes, and may have {MAX_HEADER_BYTES}")
    return size - len(begun)


def client(header: bytes | bytearray) -> str | None:
    """Return the client's address that a complete header names; None if the peer itself is the client.

    That is so for connections that the proxy makes for itself, and for clients without an internet address.

    Raises:
        HeaderError: it is of a kind that streams do not have, or too short for its addresses.
    """
    if header[12] & 0xF == _LOCAL:
        return None  # its addresses must be ignored
    kind, rest = header[13], header[FIXED_BYTES:]
    if kind not in _ADDRESSES_BYTES:
        raise HeaderError(f"family and transport are {kind:#04x}")
    if len(rest) < _ADDRESSES_BYTES[kind]:
        raise HeaderError(f"{len(rest)} bytes are too few for the addresses")
    if kind == _TCP4:
        return str(IPv4Address(bytes(rest[:4])))
    return str(IPv6Address(bytes(rest[:16]))) if kind == _TCP6 else None
