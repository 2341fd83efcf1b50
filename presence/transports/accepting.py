"""Accepting connections: first out of the kernel's queue, then in, in bites between which others are read.

The kernel's queue of new connections is short (`net.core.somaxconn`), and what it drops comes back a second
later. So connections are taken out of it quickly, and wait here for their turn to be let in, which costs
more: as a rule their login has come along. Admission bounds how many wait; a crowd beyond is sent away.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable

import structlog
import trio

from presence.logs import RateLimited

ACCEPTS_A_TURN = 256  # out of the kernel's queue: a few milliseconds
ADMISSIONS_A_TURN = 64  # each with its login, as a rule: some milliseconds
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """The listeners of one transport.

    Args:
        listeners: bound, listening sockets; owned by the acceptor from now on.
        enter: called for each descriptor that was accepted, non-blocking; returns whether to admit it.
        admit: called with some descriptors that waited. May raise `OSError` for lack of resources.

    Attributes:
        accepted, errors: counters since the start.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        enter: Callable[[int], bool],
        admit: Callable[[list[int]], None],
    ) -> None:
        self._listeners = listeners
        self._enter = enter
        self._admit = admit
        self._waiting: deque[int] = deque()
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
                if self._waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(listener)
            except (trio.ClosedResourceError, ValueError):  # closed while it waited, or before
                return
            try:
                self._accept(listener, ACCEPTS_A_TURN)
                self._let_in(ADMISSIONS_A_TURN)
            except OSError as error:
                self.errors += 1
                self._log.error("accept_failed", error=error.strerror, accepted=self.accepted)
                await trio.sleep(ACCEPT_PAUSE_S)

    def _accept(self, listener: socket.socket, limit: int) -> None:
        """Take at most `limit` connections out of the kernel's queue.

        Raises:
            OSError: resources ran out.
        """
        # What `accept` calls; the socket object that it makes for each costs as much as the call.
        accept = listener._accept  # type: ignore[attr-defined] # typeshed has it on the base class only
        for _ in range(limit if listener.fileno() >= 0 else 0):
            try:
                fd, _address = accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    raise
                continue  # the client went away while it was queueing
            os.set_blocking(fd, False)
            self.accepted += 1
            if self._enter(fd):
                self._waiting.append(fd)

    def _let_in(self, limit: int) -> None:
        waiting = self._waiting
        if waiting:
            self._admit([waiting.popleft() for _ in range(min(limit, len(waiting)))])

    def stop(self) -> None:
        """Take in what waits already, which closing would reset, and close the listeners."""
        try:
            for listener in self._listeners:
                self._accept(listener, socket.SOMAXCONN)
            self._let_in(len(self._waiting))
        except OSError as error:
            self._log.error("accept_failed", error=error.strerror, accepted=self.accepted)
        self.close()

    def close(self) -> None:
        """Close the listeners; a second call does nothing."""
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []
