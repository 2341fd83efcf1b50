"""Connections of proxies until their client is known: the PROXY protocol, version 2.

After "The PROXY protocol", versions 1 & 2, by Willy Tarreau (HAProxy), section 2.2. A header has 16 bytes (a
signature, version and command, family and transport, and the length of the rest), then addresses, and after
them extensions, which are skipped. `missing` and `client` read one, and are pure.

Headers are read only on connections from the networks of proxies. From anywhere else a header is malformed
input, because a client that could send one could claim any address. From a proxy it is required: without it
all clients would count as one. The received part of a header is kept in a buffer of at most 536 bytes; what
follows it stays in the kernel. A separate epoll set watches connections whose header is incomplete.
"""

import os
import select
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import structlog
import trio

from presence.common import networks
from presence.common.logs import RateLimited
from presence.transports.limits import MAX_LOGINS_PER_TURN
from presence.transports.statistics import TransportStatistics

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


class ProxyHeaders:
    """Connections whose header is incomplete.

    Args:
        proxies: the networks of proxies.
        close: closes a connection.
        resume: called with each connection that has received more.
        counters: statistics of the transport.

    Attributes:
        awaited: the received part of each header, by descriptor.
    """

    def __init__(
        self,
        proxies: tuple[networks.Network, ...],
        close: Callable[[int], None],
        resume: Callable[[int], None],
        counters: TransportStatistics,
    ) -> None:
        self._proxies = proxies
        self._close = close
        self._resume = resume
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._set = select.epoll() if proxies else None
        self._watched: set[int] = set()
        self.awaited: dict[int, bytearray] = {}
        self._counters = counters

    def expect(self, fd: int, address: str) -> bool:
        """Await a header if the connection comes from a proxy; return whether it does."""
        expected = networks.contains(self._proxies, address)
        if expected:
            self.awaited[fd] = bytearray()
        return expected

    async def run(self) -> None:
        if self._set is None:
            return
        while True:
            events = self._set.poll(0, MAX_LOGINS_PER_TURN)
            if not events:
                await trio.lowlevel.wait_readable(self._set.fileno())
                continue
            for fd, _mask in events:
                if fd in self.awaited:
                    self._resume(fd)
            await trio.lowlevel.checkpoint()

    def read(self, fd: int) -> str | None:
        """Read more of a header.

        Returns:
            The client's address if the header is complete; "" if the peer is the client. None if more must be
            read, or the connection was closed.

        Raises:
            OSError: the limit of epoll watches is reached, or there is no memory.
        """
        header = self.awaited[fd]
        try:
            while wanted := missing(header):
                if not (data := os.read(fd, wanted)):
                    self._drop(fd)
                    return None
                header += data
            address = client(header) or ""
        except BlockingIOError:
            self._watch(fd)
            return None
        except OSError:
            self._drop(fd)
            return None
        except HeaderError as error:
            self.refuse(fd, str(error))
            return None
        self.stop_awaiting(fd)
        self._counters.proxied += 1
        return address

    def refuse(self, fd: int, problem: str) -> None:
        """Close a connection without a packet: a misconfigured proxy could not use one."""
        self._counters.proxy_headers_refused += 1
        self._log.warning(
            "proxy header refused", problem=problem, refused=self._counters.proxy_headers_refused
        )
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        """Close a connection that has ended, as the health checks of proxies do."""
        self.stop_awaiting(fd)
        self._close(fd)

    def _watch(self, fd: int) -> None:
        if self._set is not None and fd not in self._watched:
            self._set.register(fd, select.EPOLLIN)
            self._watched.add(fd)

    def stop_awaiting(self, fd: int) -> None:
        self.awaited.pop(fd, None)
        if self._set is not None and fd in self._watched:
            self._watched.discard(fd)
            self._set.unregister(fd)

    def close(self) -> None:
        if self._set is not None:
            self._set.close()
