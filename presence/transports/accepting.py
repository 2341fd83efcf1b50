"""Accepting connections, in bites: reads come in between, and a crowd beyond the bounds is sent away."""

import errno
import os
import socket
from collections.abc import Callable

import structlog
import trio

from presence.logs import RateLimited

ACCEPTS_A_TURN = 128  # most bring their login along; with it some milliseconds
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class OutOfResourcesError(OSError):
    """There is no room for one more connection now; it was closed, or is not accepted yet."""


class Acceptor:
    """The listeners of one transport.

    Args:
        listeners: bound, listening sockets; owned by the acceptor from now on.
        admit: takes a descriptor in; raises `OutOfResourcesError` if it cannot, and has closed it then.

    Attributes:
        accepted, errors: counters since the start.
    """

    def __init__(self, listeners: list[socket.socket], admit: Callable[[int], None]) -> None:
        self._listeners = listeners
        self._admit = admit
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self.accepted = self.errors = 0
        for listener in listeners:
            listener.setblocking(False)

    async def run(self) -> None:
        """Accept until told to stop."""
        async with trio.open_nursery() as nursery:
            for listener in self._listeners:
                nursery.start_soon(self._accept_from, listener)

    async def _accept_from(self, listener: socket.socket) -> None:
        while True:
            try:
                await trio.lowlevel.wait_readable(listener)
            except (trio.ClosedResourceError, ValueError):  # closed while it waited, or before
                return
            if not self.accept(listener, ACCEPTS_A_TURN):
                await trio.sleep(ACCEPT_PAUSE_S)

    def accept(self, listener: socket.socket, limit: int) -> bool:
        """Accept at most `limit` connections that wait; False: resources ran out."""
        for _ in range(limit):
            try:
                accepted, _address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    return self._note(error)
                if listener.fileno() < 0:
                    break
                continue  # the client went away while it was queueing
            fd = accepted.detach()
            os.set_blocking(fd, False)
            self.accepted += 1
            try:
                self._admit(fd)
            except OutOfResourcesError as error:
                return self._note(error)
        return True

    def _note(self, error: OSError) -> bool:
        self.errors += 1
        self._log.error("accept_failed", error=error.strerror, accepted=self.accepted)
        return False

    def stop(self) -> None:
        """Take what waits already, which closing would reset, and close the listeners."""
        for listener in self._listeners:
            self.accept(listener, socket.SOMAXCONN)
        self.close()

    def close(self) -> None:
        """Close the listeners; a second call does nothing."""
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []
