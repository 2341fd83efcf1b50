"""Connections of proxies, until it is known for whom they are: the PROXY protocol, version 2.

After "The PROXY protocol", versions 1 & 2, by Willy Tarreau (HAProxy), section 2.2. A header is 16 bytes (a
signature, version and command, family and transport, and the length of what follows) and then so many more:
addresses, and behind them extensions, which are passed over. `missing` and `client` read one, and are pure.

Only connections from the networks of proxies are looked at for a header; from anywhere else one is bad input
like any other, for whoever could send one could be whom he likes. From a proxy it is required: without it all
clients would count as one. What has come of a header waits in a buffer, of 536 bytes at most; what comes
behind it is left in the kernel. An epoll set of its own watches those whose header is not complete.
"""

import os
import select
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import structlog
import trio

from presence.common import networks
from presence.common.logs import RateLimited
from presence.transports.limits import TURN_LOGINS, TransportStatistics

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FIXED_BYTES = 16
HEADER_MAX_BYTES = 536  # what every receiver has to take, as one segment of any network holds it

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


class ProxyHeaders:
    """The connections whose header is not complete.

    Args:
        proxies: the networks of proxies.
        close: closes a connection.
        go_on: called for each of which more has come.
        counted: what the transport counts.

    Attributes:
        awaited: what has come of each header, by descriptor.
    """

    def __init__(
        self,
        proxies: tuple[networks.Network, ...],
        close: Callable[[int], None],
        go_on: Callable[[int], None],
        counted: TransportStatistics,
    ) -> None:
        self._proxies = proxies
        self._close = close
        self._go_on = go_on
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._set = select.epoll() if proxies else None
        self._watched: set[int] = set()
        self.awaited: dict[int, bytearray] = {}
        self._counted = counted

    def expect(self, fd: int, address: str) -> bool:
        """Await a header, if the connection comes from a proxy."""
        expected = networks.holds(self._proxies, address)
        if expected:
            self.awaited[fd] = bytearray()
        return expected

    async def run(self) -> None:
        """Serve until cancelled."""
        if self._set is None:
            return
        while True:
            events = self._set.poll(0, TURN_LOGINS)
            if not events:
                await trio.lowlevel.wait_readable(self._set.fileno())
                continue
            for fd, _mask in events:
                if fd in self.awaited:
                    self._go_on(fd)
            await trio.lowlevel.checkpoint()

    def read(self, fd: int) -> str | None:
        """Read on.

        Returns:
            The client's address, once the header is complete, "" if that is the kernel's to say. None: more
            is to come, or the connection was closed.

        Raises:
            OSError: the user's limit of watches is reached, or there is no memory.
        """
        header = self.awaited[fd]
        try:
            while wanted := missing(header):
                if not (data := os.read(fd, wanted)):
                    self._let_go(fd)
                    return None
                header += data
            address = client(header) or ""
        except BlockingIOError:
            self._watch(fd)
            return None
        except OSError:
            self._let_go(fd)
            return None
        except HeaderError as error:
            self.refuse(fd, str(error))
            return None
        self.forget(fd)
        self._counted.proxied += 1
        return address

    def refuse(self, fd: int, problem: str) -> None:
        """Close a connection without a word: a proxy that is set up wrongly could not make use of one."""
        self._counted.proxy_headers_refused += 1
        self._log.warning(
            "proxy header refused", problem=problem, refused=self._counted.proxy_headers_refused
        )
        self._let_go(fd)

    def _let_go(self, fd: int) -> None:
        """Close a connection that has ended, as those do by which proxies look whether we are there."""
        self.forget(fd)
        self._close(fd)

    def _watch(self, fd: int) -> None:
        if self._set is not None and fd not in self._watched:
            self._set.register(fd, select.EPOLLIN)
            self._watched.add(fd)

    def forget(self, fd: int) -> None:
        """Await no header any more."""
        self.awaited.pop(fd, None)
        if self._set is not None and fd in self._watched:
            self._watched.discard(fd)
            self._set.unregister(fd)

    def close(self) -> None:
        """Close the set; nobody is served any more."""
        if self._set is not None:
            self._set.close()
