"""Clients in a thread of their own, who beat whatever is done to the servers, and what each has seen."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import protocol
from loadtest.clients import AWAY, Clients, Watcher
from loadtest.connection import source_addresses
from loadtest.nodes.serving import wait_for
from loadtest.swarm import Swarm

T = TypeVar("T")

SOURCES = 4  # addresses to connect from: more ports
WAIT_MAX_S = 1.0
LOGOUT = protocol.encode(protocol.logout())
LOGINS_A_SECOND = 4000.0


class Diary(Watcher):
    """What happened to each client; moments are monotonic seconds.

    Attributes:
        logins: when each was logged in, by number.
        losses: when each lost its connection, and the server's reason code, 0 without one.
    """

    def __init__(self, count: int) -> None:
        self.logins: list[list[float]] = [[] for _ in range(count)]
        self.losses: list[list[tuple[float, int]]] = [[] for _ in range(count)]

    def entered(self, number: int, at: float, told: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        self.logins[number].append(at)

    def ended(self, number: int, at: float, payload: Mapping[str, Any] | None) -> None:
        """See `Watcher`."""
        self.losses[number].append((at, payload["code"] if payload else 0))

    def lost_since(self, moment: float) -> list[int]:
        """Return who has lost a connection since."""
        return [number for number, losses in enumerate(self.losses) if losses and losses[-1][0] >= moment]


class Crowd:
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
        self.diary = Diary(count)
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
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def bring(self, numbers: Iterable[int], per_second: float = LOGINS_A_SECOND) -> None:
        """Let clients log in, evenly at that rate."""
        self._do(lambda: self._swarm.bring(numbers, time.monotonic(), per_second))

    def bring_back(self, numbers: Iterable[int]) -> None:
        """Let those of the clients log in, now, who have no connection."""
        fds = self._clients.fds
        self._do(lambda: self._swarm.bring([n for n in numbers if fds[n] == AWAY], time.monotonic()))

    def hush(self, numbers: Iterable[int]) -> None:
        """Let clients send nothing more; their connections stay open."""
        self._do(lambda: self._swarm.hush(numbers))

    def move(self, numbers: Iterable[int], away_s: tuple[float, float]) -> None:
        """Let clients lose their connection without a word; each is back after a time between the two."""
        self._do(lambda: self._swarm.drop(numbers, time.monotonic(), away_s))

    def log_out(self, numbers: Iterable[int]) -> None:
        """Let clients that are logged in log out."""

        def leave() -> None:
            for number in numbers:
                if self._clients.online[number]:
                    os.write(self._clients.fds[number], LOGOUT)
                    self._clients.beating[number] = AWAY

        self._do(leave)

    def online(self) -> int:
        """Return how many are logged in."""
        return self._clients.online.count(1)

    def wait_online(self, count: int, seconds: float) -> bool:
        """Wait until so many are logged in; return whether they are."""
        return wait_for(lambda: self.online() >= count, seconds)

    def uid(self, number: int) -> str:
        """Return a client's name."""
        return self._clients.uid(number)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are logged in and mean to stay, by uid."""
        clients = self._clients

        def look() -> dict[str, str]:
            return {
                clients.uid(number): clients.sessions[number]
                for number in range(len(clients))
                if clients.online[number] and clients.beating[number] != AWAY
            }

        return self._do(look)

    def sessions(self) -> dict[str, str]:
        """Return the sessions of those who are logged in, silent ones too, by uid."""
        clients = self._clients
        return self._do(lambda: {clients.uid(n): clients.sessions[n] for n in clients.numbers(online=True)})

    def _do(self, action: Callable[[], T]) -> T:
        """Do something in the thread of the clients, between two of their steps."""
        future: Future[T] = Future()
        self._orders.put((action, future))
        os.eventfd_write(self._wake, 1)
        return future.result()

    def _run(self) -> None:
        poll = select.epoll()
        poll.register(self._swarm.fileno(), select.EPOLLIN)
        poll.register(self._wake, select.EPOLLIN)
        due = 0.0
        while not self._closing:
            ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
                self._obey()
            due = self._swarm.step(time.monotonic())
        self._swarm.close()
        poll.close()

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
