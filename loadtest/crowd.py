"""Swarms in a thread of their own, who beat whatever is done to the servers."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import protocol
from loadtest.clients import AWAY, Clients, Watcher
from loadtest.connection import source_addresses
from loadtest.servers import wait_for
from loadtest.swarm import Swarm

T = TypeVar("T")

SOURCES = 4  # addresses to connect from: more ports
WAIT_MAX_S = 0.2
ANSWER_S = 30.0  # of their thread, which never waits for long
LOGOUT = protocol.encode(protocol.logout())
LOGINS_A_SECOND = 4000.0


class SwarmThread:
    """Drives swarms, and does in its thread what it is asked for.

    Args:
        swarms: to be driven.
        act: called after each wait; does what is due, and returns when to be called next.

    Attributes:
        failed: what the thread ended with, if it did.
    """

    def __init__(self, swarms: Sequence[Swarm], act: Callable[[], float] | None = None) -> None:
        self.failed: BaseException | None = None
        self._swarms = swarms
        self._act_due = act
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def ask(self, action: Callable[[], T]) -> T:
        """Do something in the thread of the clients, between two of their steps; return what it returns."""
        if self.failed is not None:
            raise self.failed
        future: Future[T] = Future()
        self._orders.put((action, future))
        os.eventfd_write(self._wake, 1)
        return future.result(ANSWER_S)

    def _run(self) -> None:
        try:
            with select.epoll() as poll:
                self._loop(poll)
        except BaseException as error:
            self.failed = error
            raise
        finally:
            for swarm in self._swarms:
                swarm.close()

    def _loop(self, poll: "select.epoll") -> None:
        poll.register(self._wake, select.EPOLLIN)
        for swarm in self._swarms:
            poll.register(swarm.fileno(), select.EPOLLIN)
        due = 0.0
        while not self._is_closing:
            ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
                self._obey()
            due = min(swarm.step(time.monotonic()) for swarm in self._swarms)
            if self._act_due is not None:
                due = min(due, self._act_due())

    def _obey(self) -> None:
        while True:
            try:
                action, future = self._orders.get_nowait()
            except Empty:
                return
            try:
                future.set_result(action())
            except Exception as error:
                future.set_exception(error)


class Diary(Watcher):
    """When each client lost its connection last, by number; monotonic seconds."""

    def __init__(self) -> None:
        self._lost_at: dict[int, float] = {}

    def ended(self, number: int, at: float, payload: Mapping[str, Any] | None) -> None:
        """See `Watcher`."""
        self._lost_at[number] = at

    def lost_since(self, moment: float) -> list[int]:
        """Return who has lost a connection since."""
        return [number for number, at in [*self._lost_at.items()] if at >= moment]


class Crowd(SwarmThread):
    """Clients that keep their connections as long as the servers do.

    Args:
        addresses: of servers; each connection goes to one of them at random.
        name: what their uids begin with.
        count: how many there are.
        beat_s: how often each beats.
        returns: whether they come back by themselves, as the library's clients do.
        login: see `Swarm`.

    Attributes:
        diary: what happened to them.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        name: str,
        count: int,
        *,
        beat_s: float,
        returns: bool = False,
        login: Callable[[str], bytes] | None = None,
    ) -> None:
        self.diary = Diary()
        self._clients = Clients(name, count)
        address, *others = addresses
        self._swarm = Swarm(
            address,
            self._clients,
            sources=source_addresses(address[0], SOURCES),
            returns=returns,
            login=login,
            others=others,
            watcher=self.diary,
        )
        self._swarm.beat(beat_s, time.monotonic())
        super().__init__([self._swarm])

    def bring(self, numbers: Iterable[int], per_second: float = LOGINS_A_SECOND) -> None:
        """Let clients log in, evenly at that rate."""
        self.ask(lambda: self._swarm.bring(numbers, time.monotonic(), per_second))

    def hush(self, numbers: Iterable[int]) -> None:
        """Let clients send nothing more; their connections stay open."""
        self.ask(lambda: self._swarm.hush(numbers))

    def move(self, numbers: Iterable[int], away_s: tuple[float, float]) -> None:
        """Let clients lose their connection without a word; each is back after a time between the two."""
        self.ask(lambda: self._swarm.drop(numbers, time.monotonic(), away_s))

    def log_out(self, numbers: Iterable[int]) -> None:
        """Let clients that are logged in log out."""

        def leave() -> None:
            for number in numbers:
                if self._clients.online[number]:
                    os.write(self._clients.fds[number], LOGOUT)
                    self._clients.beating[number] = AWAY

        self.ask(leave)

    def online(self) -> int:
        """Return how many are logged in."""
        return self._clients.online.count(1)

    def wait_online(self, count: int, seconds: float) -> bool:
        """Wait until so many are logged in; return whether they are."""
        return wait_for(lambda: self.online() >= count, seconds)

    def uid(self, number: int) -> str:
        """Return a client's name."""
        return self._clients.uid(number)
