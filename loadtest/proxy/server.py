"""The proxy itself: a listener, a loop in a thread of its own, and what may be asked of it from outside."""

import errno
import math
import os
import random
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Final, TypeVar

from loadtest.proxy.common import Common, Way
from loadtest.proxy.connection import Connection
from loadtest.proxy.end import EVENTS, End
from loadtest.proxy.faults import CLEAR, Faults, Injected

T = TypeVar("T")
Target = str | tuple[str, int]
"""Path of a Unix socket, or host (an IPv4 address) and port."""

BACKLOG: Final = 4096  # connections that wait while a way is a blackhole
ACCEPTS_A_TURN: Final = 64
EVENTS_A_TURN: Final = 512
ANSWER_S: Final = 10.0  # for what is asked of the thread; it never waits for anything but its sockets


class Proxy:
    """Passes connections on to a target, and disturbs them as it is told. For a ``with`` block.

    All may be called from any thread, and holds when the call returns. Connections that begin and end, with
    a FIN or with a reset, begin and end on the other side too.

    Args:
        target: where connections lead to.
        port: where to listen; 0 picks one.
        host: at which address.

    Attributes:
        address: where it listens.
        url: the same for a node's Redis.
    """

    def __init__(self, target: Target, port: int = 0, *, host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((host, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.url = f"redis://{self.address[0]}:{self.address[1]}"
        self._common = Common()
        self._connections: dict[int, Connection] = {}  # by both of their descriptors
        self._is_refusing = False
        self._is_listening = False
        self._jobs: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ask(self._set)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def injected(self) -> Injected:
        """What was truly done so far."""
        return replace(self._common.injected)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections) // 2

    def disturb(self, faults: Faults, *, up: bool = True, down: bool = True) -> None:
        """Set the faults of the ways towards the target and back, instead of those that were set."""
        self._ask(lambda: self._set(*([Way.UP] if up else []), *([Way.DOWN] if down else []), faults=faults))

    def blackhole(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing through any more; see `Faults.blackhole`."""
        self.disturb(Faults(blackhole=True), up=up, down=down)

    def refuse(self) -> None:
        """End each new connection as soon as it is made."""

        def refuse() -> None:
            self._is_refusing = True

        self._ask(refuse)

    def drop_reply(self, requests: int, *, containing: bytes = b"") -> None:
        """Lose the replies to the next requests: for a Redis target, and clients that wait for answers.

        A request, whole pipelines included, is passed on; when each of its commands has been answered, so was
        carried out, the answers are thrown away and the connection is reset. 0 ends that.

        Args:
            requests: how many.
            containing: only those in whose first 64 KiB these bytes are; a script's digest, for example.
        """

        def arm() -> None:
            self._common.drops_left, self._common.containing = requests, containing

        self._ask(arm)

    def heal(self, *, reset: bool = False) -> None:
        """End all faults. What was kept arrives now, or, with `reset`, all connections are ended instead."""

        def heal() -> None:
            if reset:
                self._reset(1.0)
            self._is_refusing = False
            self._common.drops_left = 0
            self._set(*Way, faults=CLEAR)

        self._ask(heal)

    def reset(self, share: float = 1.0) -> int:
        """Reset that share of the connections, by chance, towards both sides; return how many it were."""
        return self._ask(lambda: self._reset(share))

    def retarget(self, target: Target) -> None:
        """Lead new connections somewhere else, as a name does that has got another address."""

        def retarget() -> None:
            self._target = target

        self._ask(retarget)

    def close(self) -> None:
        """End the proxy and, without a word, its connections; a second call does nothing."""
        if not self._is_closing:
            self._is_closing = True
            os.eventfd_write(self._bell, 1)
            self._thread.join()
            os.close(self._bell)  # not before: its number may be another's by then

    def _ask(self, act: Callable[[], T]) -> T:
        """Have something done in the proxy's thread."""
        answer: Future[T] = Future()

        def job() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # it is raised where it was asked for
                answer.set_exception(error)

        self._jobs.append(job)
        os.eventfd_write(self._bell, 1)
        return answer.result(ANSWER_S)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                wait_s = self._common.wait_s()
                for fd, events in self._epoll.poll(-1 if wait_s == math.inf else wait_s, EVENTS_A_TURN):
                    if connection := self._connections.get(fd):
                        connection.note(fd, events)
                    elif fd == self._bell:
                        os.eventfd_read(self._bell)
                    elif fd == self._listener.fileno():
                        self._accept()
                self._common.run_due()
                while self._jobs:
                    self._jobs.popleft()()
        finally:
            for connection in {*self._connections.values()}:
                connection.close(reset=False)
            self._listener.close()
            self._epoll.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                near, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            end = End(near, is_writable=True)
            if self._is_refusing:
                self._common.injected.refused += 1
                end.close(reset=True)
            else:
                self._connect(end)

    def _connect(self, near: End) -> None:
        family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        far = End(socket.socket(family), is_writable=False)
        status = far.sock.connect_ex(self._target)
        if status not in {0, errno.EINPROGRESS}:
            self._common.injected.unreachable += 1
            near.close(reset=True)
            far.close(reset=False)
            return
        connection = Connection(near, far, self._common, self._forget)
        for end in (near, far):
            self._connections[end.fd] = connection
            self._epoll.register(end.fd, EVENTS)

    def _forget(self, connection: Connection) -> None:
        del self._connections[connection.near.fd], self._connections[connection.far.fd]

    def _set(self, *ways: Way, faults: Faults = CLEAR) -> None:
        for way in ways:
            self._common.faults[way] = faults
        if self._is_listening is self._common.is_hole:
            self._is_listening = not self._is_listening
            act = self._epoll.register if self._is_listening else self._epoll.unregister
            act(self._listener.fileno())
        for connection in {*self._connections.values()}:
            connection.take_turns()

    def _reset(self, share: float) -> int:
        chosen = [each for each in {*self._connections.values()} if random.random() < share]
        for connection in chosen:
            connection.close(reset=True)
        self._common.injected.resets += len(chosen)
        return len(chosen)
