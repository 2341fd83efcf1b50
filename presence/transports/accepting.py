"""Accepting connections: first out of the kernel's queue, then in, in bites between which others are read.

The kernel's queue of new connections is short (`net.core.somaxconn`), and what it drops comes back a second
later. So connections are taken out of it quickly, and wait here for their turn to be let in, which costs
more: as a rule their login has come along. No more than `WAITING_MAX` wait; a crowd beyond is sent away.
Being sent away takes a descriptor, too, for a second: where many are, others stay in the kernel's queue.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

import structlog
import trio

from presence.logs import RateLimited
from presence.transports import tcp
from presence.transports.statistics import TransportStatistics

ACCEPTS_A_TURN = 256  # out of the kernel's queue: a few milliseconds
WAITING_MAX = 20_000  # a burst that is welcome, and little more than a second of work; beyond, busy
ADMISSIONS_A_TURN = 64  # each with its login, as a rule: some milliseconds
ACCEPT_PAUSE_S = 0.25  # without descriptors, accepting rests: the listener would spin
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Acceptor:
    """The listeners of one transport.

    Args:
        listeners: bound, listening sockets; owned by the acceptor from now on.
        secured: likewise, for TLS.
        has_room: whether a descriptor can be spared for one more connection.
        enter: called for each descriptor that was accepted, non-blocking, with whether it is to be TLS and
            the address that it comes from, "" without one; returns whether to admit it.
        admit: called with some descriptors that waited. May raise `OSError` for lack of resources.
        counted: what the transport counts.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        secured: Sequence[socket.socket],
        has_room: Callable[[], bool],
        enter: Callable[[int, bool, str], bool],
        admit: Callable[[list[int]], None],
        *,
        counted: TransportStatistics,
    ) -> None:
        self._listeners = [*listeners, *secured]
        self._secured = frozenset(secured)
        self._has_room = has_room
        self._enter = enter
        self._admit = admit
        self._waiting: deque[int] = deque()
        self._log = RateLimited(structlog.get_logger("presence.transport"))
        self._counted = counted
        for listener in self._listeners:
            listener.setblocking(False)

    @property
    def waiting(self) -> int:
        """How many were accepted and are not let in yet."""
        return len(self._waiting)

    async def run(self) -> None:
        """Accept until told to stop."""
        async with trio.open_nursery() as nursery:
            for listener in self._listeners:
                nursery.start_soon(self._accept_from, listener)

    async def _accept_from(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                if self.waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(listener)
            except trio.ClosedResourceError:  # closed while it waited
                return
            accept_again_at = trio.current_time()
            if not self._accept(listener, ACCEPTS_A_TURN):
                accept_again_at += ACCEPT_PAUSE_S
            while self._let_in(ADMISSIONS_A_TURN) and trio.current_time() < accept_again_at:
                await trio.lowlevel.checkpoint()  # who was accepted comes in, though nobody else can be
            await trio.sleep_until(accept_again_at)

    def _accept(self, listener: socket.socket, limit: int) -> bool:
        """Take at most `limit` connections out of the kernel's queue; False: there is no room for more."""
        # What `accept` calls; the socket object that it makes for each costs as much as the call.
        accept = listener._accept  # type: ignore[attr-defined] # typeshed has it on the base class only
        secured = listener in self._secured
        for _ in range(limit if listener.fileno() >= 0 else 0):
            if not self._has_room():
                return False
            try:
                fd, address = accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._note(error)
                    return False
                continue  # the client went away while it was queueing
            os.set_blocking(fd, False)
            self._counted.accepted += 1
            if self._enter(fd, secured, address[0] if isinstance(address, tuple) else ""):
                self._waiting.append(fd)
        return True

    def _let_in(self, limit: int) -> bool:
        """Admit some of those who wait; return whether more do."""
        waiting = self._waiting
        if waiting:
            try:
                self._admit([waiting.popleft() for _ in range(min(limit, len(waiting)))])
            except OSError as error:
                self._note(error)
        return bool(waiting)

    def _note(self, error: OSError) -> None:
        self._counted.accept_errors += 1
        self._log.error("accept_failed", error=error.strerror, accepted=self._counted.accepted)

    async def stop(self) -> None:
        """Take in what waits already, which closing would reset, and close the listeners."""
        for listener in self._listeners:
            for _ in range(0, tcp.BACKLOG + 1, ACCEPTS_A_TURN):
                before = self._counted.accepted
                self._accept(listener, ACCEPTS_A_TURN)
                while self._let_in(ADMISSIONS_A_TURN):
                    await trio.lowlevel.checkpoint()
                if self._counted.accepted == before:
                    break
        self.close()

    def close(self) -> None:
        """Close the listeners; a second call does nothing."""
        for listener in self._listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        self._listeners = []
