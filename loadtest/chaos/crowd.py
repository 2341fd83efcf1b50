"""Clients in a thread of their own, who come, go, move and fall silent, and what each truly did."""

import heapq
import itertools
import math
import os
import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import protocol
from loadtest.chaos.truth import Login, User
from loadtest.clients import AWAY, Clients, Watcher
from loadtest.connection import source_addresses
from loadtest.facts import Sent
from loadtest.swarm import Swarm
from protocol import Code

T = TypeVar("T")

SOURCES = 4
WAIT_MAX_S = 0.2
LOGOUT = protocol.encode(protocol.logout())
PATIENCE_S = 6.0  # for the answer to a login
EACH_S = 25.0  # mean time between two deeds of a client
SILENT_FOR_S = (0.5, 4.0)  # beyond the time-out and the tick; then it comes back, told or not
RETURN_S = (0.05, 2.0)
AWAY_S = (0.05, 6.0)
LONG_AWAY = 0.3  # of those who were silent or logged out: they stay away for longer
LONG_AWAY_S = (20.0, 70.0)
BRIEF = 0.05  # of the logins, that are followed by a logout at once
BRIEF_S = 0.15
LEAVES_S = 30.0  # after which a connection that was left half open is closed
NEAR_S = 0.04  # before the time-out: so late beat those who beat late
DEEDS = {"silence": 20, "fin": 15, "reset": 15, "move": 25, "logout": 25}


class Address(NamedTuple):
    """Where a client can log in: at which node, by way of a proxy or not."""

    address: tuple[str, int]
    place: int
    is_proxied: bool


Ended = Callable[[str, Login, float, str, bool], None]
"""Told of a connection that ended unasked: uid, login, when, the server's reason, whether for good."""


class Group(Watcher):
    """Clients that beat at one interval.

    Args:
        name: what their uids begin with.
        count: how many there are.
        addresses: each connection goes to one at random.
        beat_s: their interval.
        crowd: whose acts are done at their moments.
    """

    def __init__(
        self, name: str, count: int, addresses: Sequence[Address], beat_s: float, crowd: "Crowd"
    ) -> None:
        self.clients = Clients(name, count)
        self.users = [User(self.clients.uid(number)) for number in range(count)]
        self._by_address = {each.address: each for each in addresses}
        self._crowd = crowd
        first, *others = [each.address for each in addresses]
        self.swarm = Swarm(
            first, self.clients, sources=source_addresses(first[0], SOURCES), others=others, watcher=self
        )
        self.swarm.beat(beat_s, time.monotonic())

    def _current(self, number: int) -> Login | None:
        """Return the login of a client's connection, if that is not over."""
        logins = self.users[number].logins
        login = logins[-1] if logins else None
        return login if login and math.inf == login.closed_at == login.lost_at == login.left_at else None

    # What happens, as the swarm tells

    def login_sent(self, number: int, sent: Sent) -> None:
        """See `Watcher`."""
        # The descriptor stays the swarm's.
        with socket.socket(fileno=os.dup(self.clients.fds[number])) as sock:
            address = self._by_address[sock.getpeername()]
        login = Login(address.place, address.is_proxied, sent.begun)
        self.users[number].logins.append(login)
        self._crowd.after(PATIENCE_S, lambda: self._give_up(number, login))

    def entered(self, number: int, at: float, told: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        login = self.users[number].logins[-1]
        login.entered, login.session = at, told["session"]
        login.beat(login.begun)
        if random.random() < BRIEF and self._crowd.is_acting:
            self._crowd.after(random.uniform(0.0, BRIEF_S), lambda: self._do(number, login, self.logout))

    def beaten(self, numbers: Sequence[int]) -> None:
        """See `Watcher`."""
        beating, begun, users = self.clients.beating, self.clients.begun, self.users
        for number in numbers:
            if beating[number] != AWAY:
                login, at = users[number].logins[-1], begun[number]
                if login.beats[-1] < at:
                    login.beat(at)

    def left(self, number: int, sent: Sent) -> None:
        """See `Watcher`."""
        login = self._current(number)
        if login is not None:
            login.closed_at = sent.begun

    def ended(self, number: int, at: float, payload: Mapping[str, Any] | None) -> None:
        """See `Watcher`."""
        login = self._current(number)
        if login is None:
            return  # a connection that did not come about; it is tried again
        was_wanted = login.over_at == math.inf and login.entered < math.inf
        login.lost_at, login.code = at, payload["code"] if payload else 0
        may_return = payload is None or Code(login.code).reconnect
        if was_wanted:
            self._crowd.tell(
                self.users[number].uid, login, at, payload["reason"] if payload else "", not may_return
            )
        if login.entered < math.inf or not may_return:
            wait_s = (payload or {}).get("retry_after") or random.uniform(*_away(login))
            self.swarm.bring([number], at + wait_s)

    # What they do

    def act(self) -> None:
        """Let one client that is there do something."""
        number = random.randrange(len(self.users))
        login = self._current(number)
        if login is not None and login.over_at == math.inf and login.entered < math.inf:
            (deed,) = random.choices([*DEEDS], [*DEEDS.values()])
            self._crowd.deeds[deed] += 1
            getattr(self, deed)(number, login)

    def _do(self, number: int, login: Login, deed: Callable[[int, Login], None]) -> None:
        if self._current(number) is login and login.over_at == math.inf:
            deed(number, login)

    def silence(self, number: int, login: Login) -> None:
        """Send nothing more, and come back some time."""
        self.swarm.hush([number])
        login.silent_at = time.monotonic()
        wait_s = self._crowd.idle_s + random.uniform(*SILENT_FOR_S)
        self._crowd.after(wait_s, lambda: self._revive(number, login))

    def _revive(self, number: int, login: Login) -> None:
        if self._current(number) is login:
            self.swarm.drop([number], time.monotonic(), _away(login))

    def fin(self, number: int, login: Login, *, reset: bool = False) -> None:
        """Close the connection; come back within the grace, or later."""
        grace_s = self._crowd.grace_s
        away = (0.0, 0.8 * grace_s) if random.random() < 0.6 else (1.2 * grace_s, 3 * grace_s + 2.0)
        self.swarm.drop([number], time.monotonic(), away, reset=reset)

    def reset(self, number: int, login: Login) -> None:
        """The same, by a reset."""
        self.fin(number, login, reset=True)

    def move(self, number: int, login: Login) -> None:
        """Leave the connection half open, and log in again."""
        now = time.monotonic()
        login.silent_at = login.left_at = now
        fd = self.swarm.move(number, now + random.uniform(0.0, 0.5))
        self._crowd.left_open(fd)

    def logout(self, number: int, login: Login) -> None:
        """Log out; the server closes."""
        self.clients.beating[number] = AWAY
        login.logout_at = time.monotonic()
        try:
            os.write(self.clients.fds[number], LOGOUT)
        except OSError:  # the end of the connection is about to be read
            login.logout_at = math.inf

    def _give_up(self, number: int, login: Login) -> None:
        if self._current(number) is login and (login.entered == math.inf or login.logout_at < math.inf):
            self.swarm.drop([number], time.monotonic(), RETURN_S)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are there and mean to stay, by uid."""
        found = {}
        for number, user in enumerate(self.users):
            login = self._current(number)
            if login is not None and login.entered < math.inf and login.over_at == math.inf:
                found[user.uid] = login.session
        return found


def _away(login: Login) -> tuple[float, float]:
    """Return between which seconds a client comes back."""
    if min(login.silent_at, login.logout_at) < math.inf and random.random() < LONG_AWAY:
        return LONG_AWAY_S
    return AWAY_S if login.logout_at < math.inf else RETURN_S


class Crowd:
    """All clients.

    Args:
        addresses: of nodes, with and without proxies.
        count: how many clients there are.
        near: how many of them beat shortly before their time-out; always without a proxy.
        idle_timeout, tick, grace: the servers', seconds.
        tell: see `Ended`; called in their thread.

    Attributes:
        is_acting: whether they do anything but beat and come back.
        deeds: what they did, how often.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        count: int,
        near: int,
        *,
        idle_timeout: float,
        tick: float,
        grace: float,
        tell: Ended,
    ) -> None:
        self.idle_s = idle_timeout + tick
        self.grace_s = grace
        self.tell = tell
        self.is_acting = False
        self.deeds: Counter[str] = Counter()
        self._acts: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()
        self._left_open: set[int] = set()
        direct = [each for each in addresses if not each.is_proxied]
        self._groups = [
            Group("user", count - near, addresses, 0.4 * idle_timeout, self),
            Group("near", near, direct, idle_timeout - NEAR_S, self),
        ]
        self.users = {user.uid: user for group in self._groups for user in group.users}
        self._pick = [group for group in self._groups for _ in group.users]
        self._act_s = EACH_S / count
        self._orders: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def bring_all(self, per_second: float) -> None:
        """Let all log in, evenly at that rate."""

        def bring() -> None:
            for group in self._groups:
                group.swarm.bring(range(len(group.users)), time.monotonic(), per_second)

        self._ask(bring)

    def act(self, *, on: bool) -> None:
        """Let them begin, or cease, to do things by themselves."""

        def begin() -> None:
            if on and not self.is_acting:
                self.after(self._act_s, self._act)
            self.is_acting = on

        self._ask(begin)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are there and mean to stay, by uid."""
        return self._ask(lambda: {uid: name for group in self._groups for uid, name in group.live().items()})

    def look(self, judge: Callable[[], T]) -> T:
        """Do something while no client does anything."""
        return self._ask(judge)

    @property
    def beats(self) -> int:
        """How many were sent."""
        return sum(group.swarm.counts.beats for group in self._groups)

    @property
    def logins(self) -> int:
        """How many were granted."""
        return sum(group.swarm.counts.logins for group in self._groups)

    # In their thread

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        """Have something done in a while."""
        heapq.heappush(self._acts, (time.monotonic() + seconds, next(self._sequence), act))

    def left_open(self, fd: int) -> None:
        """A connection was left half open."""
        self._left_open.add(fd)

        def close() -> None:
            self._left_open.discard(fd)
            os.close(fd)

        self.after(LEAVES_S, close)

    def _act(self) -> None:
        if self.is_acting:
            random.choice(self._pick).act()
            self.after(self._act_s, self._act)

    def _ask(self, action: Callable[[], T]) -> T:
        if self.failed is not None:
            raise self.failed
        future: Future[T] = Future()
        self._orders.put((action, future))
        os.eventfd_write(self._wake, 1)
        return future.result(30.0)

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self.failed = error
            raise
        finally:
            for group in self._groups:
                group.swarm.close()
            for fd in self._left_open:
                os.close(fd)

    def _loop(self) -> None:
        poll = select.epoll()
        poll.register(self._wake, select.EPOLLIN)
        for group in self._groups:
            poll.register(group.swarm.fileno(), select.EPOLLIN)
        due = 0.0
        while not self._is_closing:
            ready = poll.poll(min(WAIT_MAX_S, max(0.0, due - time.monotonic())))
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)
                self._obey()
            now = time.monotonic()
            while self._acts and self._acts[0][0] <= now:
                heapq.heappop(self._acts)[2]()
            due = min(group.swarm.step(time.monotonic()) for group in self._groups)
            if self._acts:
                due = min(due, self._acts[0][0])
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
