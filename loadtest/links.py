"""The connections of a swarm: from the connect to the close, all in one epoll set.

Sockets are bare descriptors, used by `os.read` and `os.write`: a client needs no object of its own, and a
packet is one system call.
"""

import _socket  # gevent replaces `socket`; each of its sockets costs an object and a place in its hub
import contextlib
import errno
import heapq
import math
import os
import random
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import protocol
from loadtest.clients import AWAY, Clients, Counts, Watcher
from protocol import Code, Kind, ProtocolError

READS_A_TURN = 256
OPENS_A_CHECK = 8  # connections opened between two looks at the clock
BACK_OFF_MAX_S = 60.0  # as the specification says under "Coming back"
READ_BYTES = 65536
LOGIN_ID = 1
ASKING_ID = 2
ASKING_BEAT = protocol.encode(protocol.keepalive(ASKING_ID))
ASKING_ANSWER = protocol.encode(protocol.ok(ASKING_ID))
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s
_PORT_AT_CONNECT = 24  # linux/in.h, IP_BIND_ADDRESS_NO_PORT: a port is free that is free towards the target


class Links:
    """The connections of all clients. What happens to them is noted in columns and counts.

    Args:
        addresses: the servers' hosts (IPv4 addresses) and ports; each connection goes to one at random.
        clients, counts: to be kept up to date.
        watcher: is told what happens.
        sources: local addresses to connect from, in turn.
        login: makes the frame of a login from the client's uid.
        returns: whether clients that were online and whose connection ended come back by themselves.
        epoll: what to wait with.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        clients: Clients,
        counts: Counts,
        watcher: Watcher,
        *,
        sources: Iterator[str | None],
        login: Callable[[str], bytes],
        returns: bool,
        epoll: "select.epoll",
    ) -> None:
        self.epoll = epoll
        self._returns = returns
        self._addresses = addresses
        self._clients = clients
        self._counts = counts
        self._watcher = watcher
        self._sources = sources
        self._login = login
        self._number_of: dict[int, int] = {}
        self._connecting: set[int] = set()
        self._partial: dict[int, bytes] = {}
        self._attempts: dict[int, int] = {}
        self._opens: list[tuple[float, int]] = []  # a heap of who connects when

    def __len__(self) -> int:
        return len(self._number_of)

    @property
    def due(self) -> float:
        """When the next connection is to be opened; infinite if none is."""
        return self._opens[0][0] if self._opens else math.inf

    @property
    def waiting(self) -> int:
        """How many clients are to connect some time."""
        return len(self._opens)

    def bring(self, number: int, at: float) -> None:
        """Let a client connect and log in at that moment."""
        heapq.heappush(self._opens, (at, number))

    def open_due(self, now: float, until: float) -> None:
        """Open what is due, or as much of it as can be done until then."""
        opens = self._opens
        while opens and opens[0][0] <= now and time.monotonic() < until:
            for _ in range(OPENS_A_CHECK):
                if opens and opens[0][0] <= now:
                    self._open(heapq.heappop(opens)[1])

    def read_ready(self) -> None:
        """Take what the server sent, as far as one look at the epoll set tells."""
        for fd, events in self.epoll.poll(0, READS_A_TURN):
            number = self._number_of.get(fd)
            if number is None:
                continue
            try:
                if fd in self._connecting and events == select.EPOLLOUT:
                    self._log_in(number, fd)
                else:
                    self._read(number, fd)
            except BlockingIOError:
                continue
            except (OSError, ProtocolError) as error:
                self.lost(number, error_name(error))

    def lost(self, number: int, why: str, payload: Mapping[str, Any] | None = None) -> None:
        """The server has ended a connection, or it broke; `payload` is the server's refusal or goodbye."""
        clients, now = self._clients, time.monotonic()
        was_online = clients.online[number]
        self.close(number)
        if was_online:
            self._counts.lost[why] += 1
        else:
            (self._counts.refused if payload else self._counts.failed)[why] += 1
        self._watcher.ended(number, now, payload)
        if not was_online or self._returns:
            self._come_back(number, payload)

    def close(self, number: int, *, reset: bool = False) -> None:
        """Close a connection that is open, with a FIN or a reset."""
        fd = self._clients.fds[number]
        if reset:
            sock = _socket.socket(fileno=fd)
            with contextlib.suppress(OSError):
                sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, _RESET_ON_CLOSE)
            sock.detach()
        os.close(fd)  # which takes it out of the epoll set
        self._forget(number, fd)

    def abandon(self, number: int) -> int:
        """Leave a connection half open and think no more of it; return its descriptor, now the caller's."""
        fd = self._clients.fds[number]
        self.epoll.unregister(fd)
        self._forget(number, fd)
        return fd

    def _forget(self, number: int, fd: int) -> None:
        clients = self._clients
        del self._number_of[fd]
        self._connecting.discard(fd)
        self._partial.pop(number, None)
        clients.fds[number] = clients.beating[number] = AWAY
        clients.online[number] = 0

    def close_all(self) -> None:
        """Close all connections, with resets, and what they were waited for with."""
        for number in list(self._number_of.values()):
            self.close(number, reset=True)
        self._opens.clear()
        self.epoll.close()

    def _open(self, number: int) -> None:
        if self._clients.fds[number] != AWAY:
            return
        try:
            sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
            try:
                self._connect(sock)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            self._counts.failed[error_name(error)] += 1
            self._come_back(number, None)
            return
        fd = self._clients.fds[number] = sock.detach()
        self._number_of[fd] = number
        self._connecting.add(fd)
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)

    def _connect(self, sock: _socket.socket) -> None:
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        if source := next(self._sources):
            sock.setsockopt(_socket.IPPROTO_IP, _PORT_AT_CONNECT, 1)
            sock.bind((source, 0))
        with contextlib.suppress(BlockingIOError):
            sock.connect(random.choice(self._addresses))

    def _log_in(self, number: int, fd: int) -> None:
        clients = self._clients
        frame = self._login(clients.uid(number))
        clients.sessions[number] = ""
        begun = time.monotonic()
        os.write(fd, frame)  # into an empty buffer, which takes it whole
        clients.before[number], clients.begun[number] = begun, begun
        clients.done[number] = time.monotonic()
        self._connecting.discard(fd)
        self.epoll.modify(fd, select.EPOLLIN)
        self._watcher.login_sent(number, clients.sent(number))

    def _read(self, number: int, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        if data == ASKING_ANSWER and number not in self._partial:
            self._answered(number)
            return
        if not data:
            self.lost(number, "closed")
            return
        data = self._partial.pop(number, b"") + data
        start = 0
        while end := protocol.frame_end(data, start, protocol.SERVER_FRAME_LIMIT_BYTES):
            if not self._take(number, protocol.decode(data[start + protocol.HEADER_BYTES : end])):
                return
            start = end
        if start < len(data):
            self._partial[number] = data[start:]

    def _take(self, number: int, packet: protocol.Packet) -> bool:
        """Take a packet; return whether the connection goes on."""
        refused = packet.kind == Kind.ERROR and not self._clients.online[number]
        if refused or packet.kind == Kind.GOODBYE:
            self.lost(number, packet.payload["reason"], packet.payload)
            return False
        if packet.kind == Kind.OK and packet.id == ASKING_ID:
            self._answered(number)
        elif packet.kind == Kind.OK and packet.id == LOGIN_ID:
            self._entered(number, packet.payload)
        return True

    def _answered(self, number: int) -> None:
        now = time.monotonic()
        self._counts.answers += 1
        self._counts.answer_s.append(now - self._clients.begun[number])
        self._watcher.answered(number, now)

    def _entered(self, number: int, told: Mapping[str, Any]) -> None:
        clients, now = self._clients, time.monotonic()
        clients.sessions[number] = told.get("session", "")
        clients.online[number] = 1
        clients.beating[number] = clients.fds[number]
        self._attempts.pop(number, None)
        self._counts.logins += 1
        self._counts.login_s.append(now - clients.begun[number])
        self._watcher.entered(number, now, told)

    def _come_back(self, number: int, payload: Mapping[str, Any] | None) -> None:
        """Try again: with full jitter over a bound that doubles, and not before the server allows it."""
        if payload is not None and not _may_return(payload["code"]):
            return
        attempts = self._attempts[number] = self._attempts.get(number, 0) + 1
        # A time that the server chose is spread already.
        wait_s = (payload or {}).get("retry_after") or random.uniform(0, min(BACK_OFF_MAX_S, 2.0**attempts))
        self.bring(number, time.monotonic() + wait_s)


def plain_login(uid: str, *, idle_timeout: float | None = None) -> bytes:
    """Return the frame of a login that says no more than who it is, and what time-out it wishes for."""
    return protocol.encode(protocol.login(uid, id=LOGIN_ID, idle_timeout=idle_timeout))


def error_name(error: OSError | ProtocolError) -> str:
    """Return what went wrong in one word, for a row of a report."""
    return errno.errorcode.get(error.errno or 0, "OSError") if isinstance(error, OSError) else "ProtocolError"


def _may_return(code: int) -> bool:
    """Whether the server's code allows a return; one that this version does not know does."""
    return code not in set(Code) or Code(code).reconnect
