"""Clients in a thread of their own, who come, go, move and fall silent, and what each truly did."""

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from loadtest.client_loop import AWAY, ClientLoop, LoopClient, LoopThread, back_off_s
from loadtest.servers import Setup
from presence import protocol
from presence.protocol import KEEPALIVE, Code
from tests.system.chaos.truth import Login, User

SOURCES = 4
LOGOUT = protocol.encode(protocol.logout())
EACH_S = 25.0  # mean time between two deeds of a client
NEAR_S = 0.04  # before the time-out: so late beat those who beat late
PATIENCE_S = 6.0  # for the answer to a login
LEAVES_S = 30.0  # after which a connection that was left half open is closed
SILENT_FOR_S = (0.5, 4.0)  # beyond the time-out and the tick; then it comes back, told or not
RETURN_S = (0.05, 2.0)
AWAY_S = (0.05, 6.0)
LONG_AWAY = 0.3  # of those who were silent or logged out: they stay away for longer
LONG_AWAY_S = (20.0, 70.0)
BRIEF = 0.05  # of the logins, that are followed by a logout at once
BRIEF_S = 0.15
DEEDS = {"silence": 20, "fin": 15, "reset": 15, "move": 25, "logout": 25}

Ended = Callable[[str, Login, float, str, bool], None]
"""Told of a connection that ended unasked: uid, login, when, the server's reason, whether for good."""


class Address(NamedTuple):
    """Where a client can log in: at which node, by way of a proxy or not."""

    address: tuple[str, int]
    place: int
    is_proxied: bool


class Habits(NamedTuple):
    """What all clients have in common, in seconds."""

    setup: Setup  # the servers'
    # Of those who lose their connection without a word this share is away for so long
    gone_share: float
    gone_s: tuple[float, float]
    tell: Ended  # see `Ended`; called in their thread


class Crowd:
    """All clients.

    Args:
        addresses: of nodes, with and without proxies; each connection goes to one at random.
        count: how many clients there are.
        near: how many of them beat shortly before their time-out; always without a proxy.
        habits: what they have in common.

    Attributes:
        users: what they did, by uid.
        is_acting: whether clients do anything but beat and come back.
        deeds: what they did, how often.
        beats: how many were sent.
    """

    def __init__(self, addresses: Sequence[Address], count: int, near: int, habits: Habits) -> None:
        self.habits = habits
        self.is_acting = False
        self.deeds: Counter[str] = Counter()
        self.beats = 0
        self.left_open: set[int] = set()
        self._act_s = EACH_S / count
        self._loop = ClientLoop(addresses[0].address, sources=SOURCES)
        direct = [each for each in addresses if not each.is_proxied]
        self._actors = [
            *(_Actor(self, self._loop, f"user-{n}", addresses, is_near=False) for n in range(count - near)),
            *(_Actor(self, self._loop, f"near-{n}", direct, is_near=True) for n in range(near)),
        ]
        self.users = {actor.uid: actor.user for actor in self._actors}
        self._thread = LoopThread(self._loop)

    def __enter__(self) -> Self:
        self._thread.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.__exit__(*exc_info)
        for fd in self.left_open:
            os.close(fd)

    @property
    def logins(self) -> int:
        """How many were granted."""
        return self._loop.logins

    def bring_all(self, per_second: float) -> None:
        """Let all log in, evenly at that rate."""
        self._thread.do(lambda: self._loop.bring(self._actors, per_second))

    def act(self, *, on: bool) -> None:
        """Let them begin, or cease, to do things by themselves."""

        def begin() -> None:
            was_acting, self.is_acting = self.is_acting, on
            if on and not was_acting:
                self._act()

        self._thread.do(begin)

    def _act(self) -> None:
        if self.is_acting:
            random.choice(self._actors).act()
            self._loop.at(time.monotonic() + self._act_s, self._act)

    def live(self) -> dict[str, str]:
        """Return the sessions of those who are there and mean to stay, by uid."""
        return self._thread.do(
            lambda: {
                actor.uid: login.session
                for actor in self._actors
                if (login := actor.login) and login.entered < math.inf and login.over_at == math.inf
            }
        )

    def leave_open(self, fd: int) -> None:
        """A connection was left half open: close it after a long while."""
        self.left_open.add(fd)

        def close() -> None:
            self.left_open.discard(fd)
            os.close(fd)

        self._loop.at(time.monotonic() + LEAVES_S, close)


class _Actor(LoopClient):
    """A client, what it truly did, and what it may do.

    Attributes:
        user: what it did.
    """

    is_member = False  # its beats have moments of their own

    def __init__(
        self, crowd: Crowd, loop: ClientLoop, uid: str, addresses: Sequence[Address], *, is_near: bool
    ) -> None:
        super().__init__(loop, uid)
        self.returns = False
        self.user = User(uid)
        self._crowd, self._habits, self._addresses = crowd, crowd.habits, addresses
        self._at = addresses[0]
        self._attempts = 0
        self._setup = setup = crowd.habits.setup
        self._beat_s = setup.idle_timeout - NEAR_S if is_near else 0.4 * setup.idle_timeout

    @property
    def login(self) -> Login | None:
        """The login of its connection, if that is not over."""
        logins = self.user.logins
        login = logins[-1] if logins else None
        return login if login and math.inf == login.closed_at == login.lost_at == login.left_at else None

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        self.loop.at(time.monotonic() + seconds, act)

    # What happens

    def connect(self) -> None:
        """Connect to some node."""
        if self.fd == AWAY:
            self._at = random.choice(self._addresses)
            self.address = self._at.address
        super().connect()

    def pause_s(self) -> float:
        self._attempts += 1
        return back_off_s(self._attempts)

    def opened(self) -> None:
        login = Login(self._at.place, self._at.is_proxied, time.monotonic())
        self.user.logins.append(login)
        super().opened()
        self._after(PATIENCE_S, partial(self._give_up, login))

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        login = self.user.logins[-1]
        login.entered, login.session = now, payload["session"]
        login.beat(login.begun)
        self._attempts = 0
        self._beat_later(login, now + random.uniform(0, self._beat_s))
        if random.random() < BRIEF and self._crowd.is_acting:
            self._after(random.uniform(0.0, BRIEF_S), partial(self._log_out_soon, login))

    def _beat_later(self, login: Login, due: float) -> None:
        self.loop.at(due, partial(self._beat, login, due))

    def _beat(self, login: Login, due: float) -> None:
        if self.login is login and login.over_at == math.inf:
            moment = time.monotonic()
            if self.put(KEEPALIVE):
                login.beat(moment)
                self._crowd.beats += 1
            self._beat_later(login, due + self._beat_s)

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        login = self.login
        if login is None:  # no connection came about
            self._after(self.pause_s(), self.connect)
            return
        was_wanted = login.over_at == math.inf and login.entered < math.inf
        login.lost_at, login.code = now, payload["code"] if payload else 0
        may_return = payload is None or Code(login.code).reconnect
        if was_wanted:
            reason = payload["reason"] if payload else ""
            self._habits.tell(self.uid, login, now, reason, not may_return)
        wait_s = (payload or {}).get("retry_after")
        if login.entered < math.inf or not may_return:
            is_gone = was_wanted and not payload and random.random() < self._habits.gone_share
            wait_s = wait_s or random.uniform(*self._habits.gone_s if is_gone else _away(login))
        self._after(wait_s or self.pause_s(), self.connect)

    def _give_up(self, login: Login) -> None:
        if self.login is login and (login.entered == math.inf or login.logout_at < math.inf):
            self._leave(login, RETURN_S)

    def _leave(self, login: Login, away_s: tuple[float, float], *, reset: bool = True) -> None:
        """Close the connection, and come back between so many seconds."""
        login.closed_at = time.monotonic()
        self.drop(reset=reset)
        self._after(random.uniform(*away_s), self.connect)

    # What it does

    def act(self) -> None:
        """Do something, if it is there."""
        login = self.login
        if login is not None and login.over_at == math.inf and login.entered < math.inf:
            (deed,) = random.choices([*DEEDS], [*DEEDS.values()])
            self._crowd.deeds[deed] += 1
            getattr(self, f"_{deed}")(login)

    def _silence(self, login: Login) -> None:
        """Send nothing more, and come back some time."""
        login.silent_at = time.monotonic()
        wait_s = self._setup.idle_timeout + self._setup.tick + random.uniform(*SILENT_FOR_S)
        self._after(wait_s, partial(self._revive, login))

    def _revive(self, login: Login) -> None:
        if self.login is login:
            self._leave(login, _away(login))

    def _fin(self, login: Login, *, reset: bool = False) -> None:
        """Close the connection; come back within the grace, or later."""
        grace_s = self._setup.grace
        away_s = (0.0, 0.8 * grace_s) if random.random() < 0.6 else (1.2 * grace_s, 3 * grace_s + 2.0)
        self._leave(login, away_s, reset=reset)

    def _reset(self, login: Login) -> None:
        """The same, by a reset."""
        self._fin(login, reset=True)

    def _move(self, login: Login) -> None:
        """Leave the connection half open, and log in again."""
        login.silent_at = login.left_at = time.monotonic()
        self._crowd.leave_open(self.leave_open())
        self._after(random.uniform(0.0, 0.5), self.connect)

    def _logout(self, login: Login) -> None:
        """Log out; the server closes."""
        login.logout_at = time.monotonic()
        if not self.put(LOGOUT):
            login.logout_at = math.inf  # the end of the connection is about to be read

    def _log_out_soon(self, login: Login) -> None:
        if self.login is login and login.over_at == math.inf:
            self._logout(login)


def _away(login: Login) -> tuple[float, float]:
    """Return between which seconds a client comes back."""
    if min(login.silent_at, login.logout_at) < math.inf and random.random() < LONG_AWAY:
        return LONG_AWAY_S
    return AWAY_S if login.logout_at < math.inf else RETURN_S
