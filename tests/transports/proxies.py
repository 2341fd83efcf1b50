"""Headers of the PROXY protocol, version 2, as a proxy sends them."""

import socket

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
LOCAL, PROXY = 0x20, 0x21
TCP4, TCP6, UNIX = 0x11, 0x21, 0x31


def header(command: int, kind: int, rest: bytes) -> bytes:
    """Return a header: version and command, family and transport, and the bytes after the length."""
    return SIGNATURE + bytes([command, kind]) + len(rest).to_bytes(2, "big") + rest


def of_client(address: str, tlvs: bytes = b"") -> bytes:
    """Return the header of a client's connection."""
    family, kind, server = (
        (socket.AF_INET6, TCP6, "2001:db8::1") if ":" in address else (socket.AF_INET, TCP4, "192.0.2.254")
    )
    addresses = socket.inet_pton(family, address) + socket.inet_pton(family, server)
    return header(PROXY, kind, addresses + b"\xc8\x22\x1c\xe8" + tlvs)
