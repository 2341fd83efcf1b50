"""Connections of proxies, until it is known for whom they are.

A proxy begins each connection with a header that names the client, see `proxy_v2.py`. Only connections from
the networks of proxies are looked at for one; from anywhere else a header is bad input like any other, for
whoever could send one could be whom he likes. From a proxy it is required: without it all clients would count
as one.

What has come of a header waits in a buffer, of 536 bytes at most; what comes behind it is left in the kernel.
An epoll set of its own watches those whose header is not complete.
"""

import os
import select
from collections.abc import Callable

import structlog
import trio

from presence import networks
from presence.logs import RateLimited
from presence.transports import proxy_v2
from presence.transports.limits import TURN_LOGINS
from presence.transports.statistics import TransportStatistics


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
            while missing := proxy_v2.missing(header):
                if not (data := os.read(fd, missing)):
                    self._let_go(fd)
                    return None
                header += data
            client = proxy_v2.client(header) or ""
        except BlockingIOError:
            self._watch(fd)
            return None
        except OSError:
            self._let_go(fd)
            return None
        except proxy_v2.HeaderError as error:
            self.refuse(fd, str(error))
            return None
        self.forget(fd)
        self._counted.proxied += 1
        return client

    def refuse(self, fd: int, problem: str) -> None:
        """Close a connection without a word: a proxy that is set up wrongly could not make use of one."""
        self._counted.proxy_headers_refused += 1
        self._log.warning(
            "proxy_header_refused", problem=problem, refused=self._counted.proxy_headers_refused
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
