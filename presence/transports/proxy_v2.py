"""The PROXY protocol, version 2: what a proxy says of a client before it passes on what the client says.

After "The PROXY protocol", versions 1 & 2, by Willy Tarreau (HAProxy), section 2.2. A header is 16 bytes (a
signature, version and command, family and transport, and the length of what follows) and then so many more:
addresses, and behind them extensions, which are passed over.

Whoever reads a header asks for exactly as many bytes as are missing from it, so that whatever comes behind it
stays in the kernel. Pure: no sockets.
"""

from ipaddress import IPv4Address, IPv6Address

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES = 16
HEADER_MAX_BYTES = (
    536  # what the specification has every receiver take, as one segment of any network holds it
)

_VERSION = 0x2
_LOCAL, _PROXY = 0x0, 0x1
# Bytes of the addresses and ports, by family and transport. Of datagrams there are none here.
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESSES_BYTES = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}


class HeaderError(Exception):
    """A connection of a proxy does not begin with a header that can be understood; says what is wrong."""


def missing(begun: bytes | bytearray) -> int:
    """Return how many bytes are to be read next; 0: the header is complete.

    Args:
        begun: the header's bytes, as far as they were read.

    Raises:
        HeaderError: they are the beginning of none.
    """
    if not SIGNATURE.startswith(begun[: len(SIGNATURE)]):
        raise HeaderError("no header of the PROXY protocol, version 2")
    if len(begun) < FIXED_BYTES:
        return FIXED_BYTES - len(begun)
    version, command = begun[12] >> 4, begun[12] & 0xF
    if version != _VERSION or command not in {_LOCAL, _PROXY}:
        raise HeaderError(f"version and command are {begun[12]:#04x}")
    size = FIXED_BYTES + int.from_bytes(begun[14:16], "big")
    if size > HEADER_MAX_BYTES:
        raise HeaderError(f"the header has {size} bytes, and may have {HEADER_MAX_BYTES}")
    return size - len(begun)


def client(header: bytes | bytearray) -> str | None:
    """Return the client's address that a complete header names; None: it is whoever connected.

    That is so for connections that the proxy makes for itself, and for clients that have no address of the
    internet.

    Raises:
        HeaderError: it is of a kind that no stream of bytes has, or too short for its addresses.
    """
    if header[12] & 0xF == _LOCAL:
        return None  # and whatever it says of addresses is to be ignored
    kind, rest = header[13], header[FIXED_BYTES:]
    if kind not in _ADDRESSES_BYTES:
        raise HeaderError(f"family and transport are {kind:#04x}")
    if len(rest) < _ADDRESSES_BYTES[kind]:
        raise HeaderError(f"{len(rest)} bytes are too few for the addresses")
    if kind == _TCP4:
        return str(IPv4Address(bytes(rest[:4])))
    return str(IPv6Address(bytes(rest[:16]))) if kind == _TCP6 else None
