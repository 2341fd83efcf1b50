"""Clients in a thread of their own, who come, go, move and fall silent, and what each truly did."""

import contextlib
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from loadtest.servers import Setup
from presence import protocol
from presence.loadtest.client_loop import (
    LOGIN_ID,
    NO_CONNECTION,
    ClientLoop,
    LoopClient,
    LoopThread,
    backoff_s,
)
from presence.protocol import KEEPALIVE, Code, Kind
from tests.system.chaos.truth import DeviceLogin, User, UserBan, Wish
from tests.system.chaos.websocket_framing import WebSocketFraming

SOURCES = 4
LOGOUT = protocol.encode(protocol.logout())
MEAN_ACTION_S = 25.0  # mean time between two deeds of a client
LATE_KEEPALIVE_S = 0.04  # before the time-out, for clients whose keepalives are late
ANSWER_TIMEOUT_S = 6.0  # for the answer to a login
ABANDONED_S = 30.0  # after which a connection that was left half open is closed
SILENT_FOR_S = (0.5, 4.0)  # beyond the time-out and the tick; then it comes back, told or not
RETURN_S = (0.05, 2.0)
AWAY_S = (0.05, 6.0)
LONG_AWAY_SHARE = 0.3  # of those who were silent or logged out: they stay away for longer
LONG_AWAY_S = (20.0, 70.0)
BRIEF_SHARE = 0.05  # of the logins, that are followed by a logout at once
BRIEF_S = 0.15
ACTIONS = {"silence": 20, "fin": 15, "reset": 15, "move": 25, "logout": 25}
REQUESTS = {"wish": 15, "status": 30}  # beside these, where clients make requests
ROOM_REQUESTS = {"rooms": 40}
CLIENTS_A_ROOM = 3  # on average, beside the lobby; so rooms become empty now and then
MAX_ROOMS = 3
STATUSES = ("online", "away", "busy", "dnd", "invisible")
WISH_FACTOR = 2.0  # of the usual idle time-out, at most; not below it, as for the bounds of a node's death
MAX_BAN_S = 20.0  # of a ban, and of what keeps it from the nodes
STATUS_S = (0.5, 20.0)  # until a status ends, of those that have an end

Ended = Callable[[str, DeviceLogin, float, str, bool], None]
"""Told of a connection that ended unasked: uid, login, when, the server's reason, whether for good."""


class Address(NamedTuple):
    """Where a client can log in: at which node, through a proxy or not, over TCP or WebSocket."""

    address: tuple[str, int]
    place: int
    is_proxied: bool
    is_websocket: bool


class Habits(NamedTuple):
    """What all clients have in common."""

    setup: Setup  # the servers'
    # Of those who lose their connection without a word this share is away for so long
    gone_share: float
    gone_s: tuple[float, float]
    on_lost: Ended  # see `Ended`; called in their thread
    on_granted: Callable[[str, DeviceLogin], None]  # a login of a user was granted; the same
    makes_requests: bool  # whether they change their status and idle time-out
    has_rooms: bool  # whether they are in rooms


class Crowd:
    """All clients.

    Args:
        addresses: of nodes, with and without proxies; each connection goes to a random one.
        near: how many send keepalives just before the deadline; never through a proxy.

    Attributes:
        users: what they did, by uid.
        keepalives, websocket_logins: how many were sent, and granted over WebSocket.
        is_acting: whether clients do anything but send keepalives and reconnect.
    """

    def __init__(self, addresses: Sequence[Address], count: int, near: int, habits: Habits) -> None:
        self.habits = habits
        self.is_acting = False
        self.actions: Counter[str] = Counter()
        self.keepalives = self.websocket_logins = 0
        self.abandoned: set[int] = set()
        self._action_interval_s = MEAN_ACTION_S / count
        self.weights = ACTIONS | (REQUESTS if habits.makes_requests else {})
        self.weights |= ROOM_REQUESTS if habits.has_rooms else {}
        self.rooms = ["lobby", *(f"room-{n}" for n in range(count // CLIENTS_A_ROOM))]
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
        for fd in self.abandoned:
            os.close(fd)

    @property
    def logins(self) -> int:
        return self._loop.logins

    def log_in_all(self, per_second: float) -> None:
        """Let all clients log in, evenly at that rate."""
        self._thread.call(lambda: self._loop.connect_all(self._actors, per_second))

    def set_acting(self, *, on: bool) -> None:
        """Start or stop the clients' random actions."""

        def begin() -> None:
            was_acting, self.is_acting = self.is_acting, on
            if on and not was_acting:
                self._act_next()

        self._thread.call(begin)

    def _act_next(self) -> None:
        if self.is_acting:
            random.choice(self._actors).act()
            self._loop.call_at(time.monotonic() + self._action_interval_s, self._act_next)

    def ban(self, ban: Callable[[str], UserBan | None]) -> None:
        """Have a random user banned by this function; its client, if it is in, may be ended from now on."""
        user = random.choice([*self.users.values()])
        now = time.monotonic()
        user.banned_until = now + MAX_BAN_S
        for login in [*user.logins]:
            login.banned_at = min(login.banned_at, now)
        done = ban(user.uid)
        if done is not None:
            user.bans.append(done)

    def shown(self, tolerance_s: float) -> dict[str, str]:
        """Return, by session, the statuses that sessions must show; not those in between two."""
        now = time.monotonic()
        found = self._thread.call(
            lambda: {
                actor.login.session: actor.login.status_at(now, tolerance_s)
                for actor in self._actors
                if actor.login is not None and actor.login.gone_at == math.inf
            }
        )
        return {session: status for session, status in found.items() if session and status}

    def live_sessions(self) -> dict[str, str]:
        """Return, by uid, the sessions of clients that are connected and mean to stay."""
        return self._thread.call(
            lambda: {
                actor.uid: login.session
                for actor in self._actors
                if (login := actor.login) and login.granted_at < math.inf and login.gone_at == math.inf
            }
        )

    def close_later(self, fd: int) -> None:
        """Close a connection that was left half open, after a long while."""
        self.abandoned.add(fd)

        def close() -> None:
            self.abandoned.discard(fd)
            os.close(fd)

        self._loop.call_at(time.monotonic() + ABANDONED_S, close)


class _Actor(LoopClient):
    """A client that records in `user` what it truly did."""

    is_member = False  # its keepalives have a schedule of their own

    def __init__(
        self, crowd: Crowd, loop: ClientLoop, uid: str, addresses: Sequence[Address], *, is_near: bool
    ) -> None:
        super().__init__(loop, uid)
        self.reconnects = False
        self.user = User(uid)
        self._crowd, self._habits, self._addresses = crowd, crowd.habits, addresses
        self._target = addresses[0]
        self._framing: WebSocketFraming | None = None  # of its connection, if that is a WebSocket
        self._attempts = 0
        self._is_near = is_near
        self._ids = itertools.count(LOGIN_ID + 1)
        has_lobby = crowd.habits.has_rooms and random.random() < 0.5
        self._chosen: list[str] = [crowd.rooms[0]] if has_lobby else []
        self._setup = setup = crowd.habits.setup
        self._keepalive_s = setup.idle_timeout - LATE_KEEPALIVE_S if is_near else 0.4 * setup.idle_timeout

    @property
    def login(self) -> DeviceLogin | None:
        """The login of its connection, unless that has ended."""
        logins = self.user.logins
        login = logins[-1] if logins else None
        return login if login and math.inf == login.closed_at == login.lost_at == login.abandoned_at else None

    def _call_after(self, seconds: float, act: Callable[[], object]) -> None:
        self.loop.call_at(time.monotonic() + seconds, act)

    # What happens

    def connect(self) -> None:
        """Connect to a random node."""
        if self.fd == NO_CONNECTION:
            self._target = random.choice(self._addresses)
            self.address = self._target.address
        super().connect()

    def reconnect_delay_s(self) -> float:
        self._attempts += 1
        return backoff_s(self._attempts)

    def on_connected(self) -> None:
        self._framing = WebSocketFraming() if self._target.is_websocket else None
        if self._framing is not None:
            with contextlib.suppress(OSError):  # its next read says so
                super()._write(self._framing.request())
        now = time.monotonic()
        login = DeviceLogin(self._target.place, self._target.is_proxied, now, self._target.is_websocket)
        login.banned_at = now if now < self.user.banned_until else math.inf
        self.user.logins.append(login)
        self.send(protocol.encode(protocol.login(self.uid, id=LOGIN_ID, rooms=self._chosen or None)))
        self._call_after(ANSWER_TIMEOUT_S, partial(self._check_answered, login))

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        login = self.user.logins[-1]
        login.granted_at, login.session = now, payload["session"]
        self._crowd.websocket_logins += login.is_websocket
        login.record_packet(login.sent_at)
        self._attempts = 0
        if not self._is_near:
            self._keepalive_s = 0.4 * self._setup.idle_timeout
        self._habits.on_granted(self.uid, login)
        self._schedule_keepalive(login, now + random.uniform(0, self._keepalive_s))
        if random.random() < BRIEF_SHARE and self._crowd.is_acting:
            self._call_after(random.uniform(0.0, BRIEF_S), partial(self._log_out_soon, login))

    def _schedule_keepalive(self, login: DeviceLogin, due: float) -> None:
        self.loop.call_at(due, partial(self._send_due_keepalive, login, due))

    def _send_due_keepalive(self, login: DeviceLogin, due: float) -> None:
        if self.login is login and login.gone_at == math.inf:
            moment = time.monotonic()
            if self.try_send(KEEPALIVE):
                login.record_packet(moment)
                self._crowd.keepalives += 1
            self._schedule_keepalive(login, due + self._keepalive_s)

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        login = self.login
        wish = next((each for each in login.wishes if each.id == id), None) if login else None
        if login is None or wish is None:
            return
        if kind == Kind.ERROR:  # too many updates
            login.wishes.remove(wish)
        else:
            wish.answered_at = now
        if wish.idle_timeout and not self._is_near:
            self._keepalive_s = 0.4 * login.idle_timeouts(self._setup.idle_timeout, now)[0]

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        login = self.login
        if login is None:  # no connection came about
            self._call_after(self.reconnect_delay_s(), self.connect)
            return
        was_wanted = login.gone_at == math.inf and login.granted_at < math.inf
        login.lost_at, login.code = now, payload["code"] if payload else 0
        may_return = payload is None or Code(login.code).reconnect or "retry_after" in payload
        if was_wanted:
            reason = payload["reason"] if payload else ""
            self._habits.on_lost(self.uid, login, now, reason, not may_return)
        wait_s = (payload or {}).get("retry_after")
        if login.granted_at < math.inf or not may_return:
            is_gone = was_wanted and not payload and random.random() < self._habits.gone_share
            wait_s = wait_s or random.uniform(*self._habits.gone_s if is_gone else _absence_s(login))
        self._call_after(wait_s or self.reconnect_delay_s(), self.connect)

    def _check_answered(self, login: DeviceLogin) -> None:
        if self.login is login and (login.granted_at == math.inf or login.logout_at < math.inf):
            self._disconnect(login, RETURN_S)

    def _disconnect(self, login: DeviceLogin, absence_s: tuple[float, float], *, reset: bool = True) -> None:
        """Close the connection, and reconnect after a time from that range."""
        login.closed_at = time.monotonic()
        self.close(reset=reset)
        self._call_after(random.uniform(*absence_s), self.connect)

    def _receive(self) -> bytes:
        data = super()._receive()
        if not data or self._framing is None:
            return data
        if packets := self._framing.unwrap(data):
            return packets
        raise BlockingIOError  # no message is complete

    def _write(self, data: bytes | bytearray) -> int:
        if self._framing is None:
            return super()._write(data)
        message = self._framing.wrap(bytes(data))
        if super()._write(message) < len(message):  # no other message can follow
            raise ConnectionAbortedError("the kernel has taken a part of a message")
        return len(data)

    # What it does

    def act(self) -> None:
        """Take a random action, if logged in."""
        login = self.login
        if login is not None and login.gone_at == math.inf and login.granted_at < math.inf:
            weights = self._crowd.weights
            (action,) = random.choices([*weights], [*weights.values()])
            self._crowd.actions[action] += 1
            getattr(self, f"_{action}")(login)

    def _silence(self, login: DeviceLogin) -> None:
        """Send nothing more, and reconnect some time."""
        login.silent_at = time.monotonic()
        wait_s = self._setup.idle_timeout + self._setup.tick + random.uniform(*SILENT_FOR_S)
        self._call_after(wait_s, partial(self._end_silence, login))

    def _end_silence(self, login: DeviceLogin) -> None:
        if self.login is login:
            self._disconnect(login, _absence_s(login))

    def _fin(self, login: DeviceLogin, *, reset: bool = False) -> None:
        """Close the connection; reconnect within the grace, or later."""
        grace_s = self._setup.grace
        absence_s = (0.0, 0.8 * grace_s) if random.random() < 0.6 else (1.2 * grace_s, 3 * grace_s + 2.0)
        self._disconnect(login, absence_s, reset=reset)

    def _reset(self, login: DeviceLogin) -> None:
        """As `_fin`, by a reset."""
        self._fin(login, reset=True)

    def _move(self, login: DeviceLogin) -> None:
        """Leave the connection half open, and log in again."""
        login.silent_at = login.abandoned_at = time.monotonic()
        self._crowd.close_later(self.detach())
        self._call_after(random.uniform(0.0, 0.5), self.connect)

    def _logout(self, login: DeviceLogin) -> None:
        login.logout_at = time.monotonic()
        if not self.try_send(LOGOUT):
            login.logout_at = math.inf  # the end of the connection is about to be read

    def _wish(self, login: DeviceLogin) -> None:
        """Ask for another idle time-out."""
        usual = self._setup.idle_timeout
        if not self._is_near:
            seconds = random.choice((usual, random.uniform(usual, WISH_FACTOR * usual)))
            self._request(login, idle_timeout=seconds)

    def _status(self, login: DeviceLogin) -> None:
        """Set a status, some with an end."""
        status, seconds = random.choice(STATUSES), random.uniform(*STATUS_S)
        self._request(login, status=status, seconds=seconds if random.random() < 0.5 else math.inf)

    def _rooms(self, login: DeviceLogin) -> None:
        """Go to other rooms; a later login is in those of the last one."""
        self._chosen = random.sample(self._crowd.rooms, random.randint(0, MAX_ROOMS))
        moment = time.monotonic()
        if self.try_send(protocol.encode(protocol.update(rooms=self._chosen, id=next(self._ids)))):
            login.record_packet(moment)

    def _request(
        self, login: DeviceLogin, *, idle_timeout: float = 0.0, status: str = "", seconds: float = math.inf
    ) -> None:
        now, id = time.monotonic(), next(self._ids)
        until_ms = None if seconds == math.inf else round((time.time() + seconds) * 1000)
        update = protocol.update(
            idle_timeout=idle_timeout or None, status=status or None, until_ms=until_ms, id=id
        )
        wish = Wish(id, now, idle_timeout, status, now + seconds)
        login.wishes.append(wish)
        if self.try_send(protocol.encode(update)):
            login.record_packet(now)
            self._keepalive_s = min(self._keepalive_s, 0.4 * (idle_timeout or math.inf))
        else:
            login.wishes.remove(wish)  # the end of the connection is about to be read

    def _log_out_soon(self, login: DeviceLogin) -> None:
        if self.login is login and login.gone_at == math.inf:
            self._logout(login)


def _absence_s(login: DeviceLogin) -> tuple[float, float]:
    """Return the range of seconds after which a client reconnects."""
    if min(login.silent_at, login.logout_at) < math.inf and random.random() < LONG_AWAY_SHARE:
        return LONG_AWAY_S
    return AWAY_S if login.logout_at < math.inf else RETURN_S
