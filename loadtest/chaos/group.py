"""Clients that beat at one interval, what each of them truly did, and what each may do."""

import math
import os
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import protocol
from loadtest.chaos.acts import Acts
from loadtest.chaos.truth import Login, User
from loadtest.clients import AWAY, Clients, Watcher
from loadtest.connection import source_addresses
from loadtest.facts import Sent
from loadtest.swarm import Swarm
from protocol import Code

SOURCES = 4
LOGOUT = protocol.encode(protocol.logout())
PATIENCE_S = 6.0  # for the answer to a login
SILENT_FOR_S = (0.5, 4.0)  # beyond the time-out and the tick; then it comes back, told or not
RETURN_S = (0.05, 2.0)
AWAY_S = (0.05, 6.0)
LONG_AWAY = 0.3  # of those who were silent or logged out: they stay away for longer
LONG_AWAY_S = (20.0, 70.0)
BRIEF = 0.05  # of the logins, that are followed by a logout at once
BRIEF_S = 0.15
DEEDS = {"silence": 20, "fin": 15, "reset": 15, "move": 25, "logout": 25}


class Address(NamedTuple):
    """Where a client can log in: at which node, by way of a proxy or not."""

    address: tuple[str, int]
    place: int
    is_proxied: bool


class Group(Watcher):
    """Clients that beat at one interval.

    Args:
        name: what their uids begin with.
        count: how many there are.
        addresses: each connection goes to one at random.
        beat_s: their interval.
        acts: what all clients are to do, and when.
    """

    def __init__(
        self, name: str, count: int, addresses: Sequence[Address], beat_s: float, acts: Acts
    ) -> None:
        self.clients = Clients(name, count)
        self.users = [User(self.clients.uid(number)) for number in range(count)]
        self._by_address = {each.address: each for each in addresses}
        self._acts = acts
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
        self._acts.after(PATIENCE_S, lambda: self._give_up(number, login))

    def entered(self, number: int, at: float, told: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        login = self.users[number].logins[-1]
        login.entered, login.session = at, told["session"]
        login.beat(login.begun)
        if random.random() < BRIEF and self._acts.is_acting:
            self._acts.after(random.uniform(0.0, BRIEF_S), lambda: self._do(number, login, self.logout))

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
            self._acts.tell(
                self.users[number].uid, login, at, payload["reason"] if payload else "", not may_return
            )
        if login.entered < math.inf or not may_return:
            gone = self._acts.gone
            is_gone = was_wanted and not payload and random.random() < gone.share
            away = gone.seconds if is_gone else _away(login)
            wait_s = (payload or {}).get("retry_after") or random.uniform(*away)
            self.swarm.bring([number], at + wait_s)

    # What they do

    def act(self) -> None:
        """Let one client that is there do something."""
        number = random.randrange(len(self.users))
        login = self._current(number)
        if login is not None and login.over_at == math.inf and login.entered < math.inf:
            (deed,) = random.choices([*DEEDS], [*DEEDS.values()])
            self._acts.deeds[deed] += 1
            getattr(self, deed)(number, login)

    def _do(self, number: int, login: Login, deed: Callable[[int, Login], None]) -> None:
        if self._current(number) is login and login.over_at == math.inf:
            deed(number, login)

    def silence(self, number: int, login: Login) -> None:
        """Send nothing more, and come back some time."""
        self.swarm.hush([number])
        login.silent_at = time.monotonic()
        wait_s = self._acts.idle_s + random.uniform(*SILENT_FOR_S)
        self._acts.after(wait_s, lambda: self._revive(number, login))

    def _revive(self, number: int, login: Login) -> None:
        if self._current(number) is login:
            self.swarm.drop([number], time.monotonic(), _away(login))

    def fin(self, number: int, login: Login, *, reset: bool = False) -> None:
        """Close the connection; come back within the grace, or later."""
        grace_s = self._acts.grace_s
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
        self._acts.left_open(fd)

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
