"""Connections over TCP, with or without TLS.

Tests: `tests/client/test_client.py`, `tests/system/client/test_tls.py`, `tests/system/client/test_addresses.py`.
"""

import ssl

import anyio
from anyio.abc import ByteStream


async def open_tcp(host: str, port: int, ssl_context: ssl.SSLContext | None) -> ByteStream:
    """Connect over TCP, and over TLS if there is a context.

    Raises:
        OSError, UnicodeError, anyio.BrokenResourceError, anyio.EndOfStream: no address could be connected to.
    """
    if ssl_context is None:
        return await anyio.connect_tcp(host, port)
    return await anyio.connect_tcp(
        host, port, tls=True, ssl_context=ssl_context, tls_standard_compatible=False
    )
