"""One device: a connection, a session, beats that are sent when they are due, and its misadventures.

It reports everything that it does to the judge; nothing here decides what the server should make of it.
"""

import itertools
import os
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from loadtest.client_loop import ASKING_BEAT, ASKING_ID, AWAY, LOGIN_ID, NOTHING, LoopClient, back_off_s
from loadtest.users.judge import JudgedSession, Sent
from loadtest.users.options import STORM_BACK_S
from presence import protocol
from presence.protocol import Code, Kind, Packet

if TYPE_CHECKING:  # it needs gevent, which devices do without
    from loadtest.users.run import DeviceRun

ANSWER_TIMEOUT_S = 10.0  # for a login or a logout: a server at its limits refuses, it does not delay
ASKED_SHARE = 3  # every third beat asks for an answer, as the specification advises
LATE_BEAT_S = 0.25  # a beat that is sent later than this tells that the load generator is at its limits
FLAP_SHARE = 0.9  # of flaps are within the grace: a tunnel, another cell; the rest are longer
ANSWERED = "keepalive, answered"
LATE = "(load generator late with a beat)"
SILENCES = {"brief": 2, "taken over": 1, "edge": 1, "long": 4}
_EXPECTED = (Code.UNSUPPORTED, Code.RECIPIENT_OFFLINE, Code.RECIPIENT_DISCONNECTED, Code.RATE_LIMITED)


class Device(LoopClient):
    """A device that logs in, beats at the interval that the server dictates, and does what the scenario says.

    Args:
        run: what the devices of this process share.
    """

    is_member = False  # its beats have moments of their own

    def __init__(self, run: "DeviceRun") -> None:
        super().__init__(run.loop, next(run.uids))
        self.returns = False
        self._run = run
        self._judge = run.judge
        self._ids = itertools.count(ASKING_ID + 1)
        self._beats = random.randrange(ASKED_SHARE)
        self._login: JudgedSession | None = None  # that was sent and is not answered yet
        self._session: JudgedSession | None = None  # the present or last one
        self._asked: dict[int, tuple[str, float]] = {}
        self._beat_s = 0.0
        self._beat_due = 0.0
        self._attempts = self._tries = 0
        self._is_connecting = False
        self._left_open = AWAY  # a connection that is silent until the next login is granted
        self._is_over = False

    def start(self, within_s: float) -> None:
        """Log in some time, and live from then on."""
        self.loop.at(time.monotonic() + random.uniform(0, within_s), self.connect)

    def stop(self) -> None:
        """Vanish, as a device does."""
        self._is_over = True
        if self.is_in:
            self._close()
        self.drop()
        self._let_go()

    # Logging in

    def connect(self) -> None:
        """Open a connection; if none comes about try again."""
        if self._is_over:
            return
        self._attempts += 1
        self._tries += 1
        try:
            self.loop.open(self)
        except OSError as error:
            self._failed(error.strerror or str(error))
        else:
            self._is_connecting = True
            self.loop.at(time.monotonic() + ANSWER_TIMEOUT_S, partial(self._give_up, self._tries))

    def opened(self) -> None:
        """See `LoopClient`."""
        wish = self._run.options.idle_timeout_wish or None
        frame = protocol.encode(protocol.login(self.uid, id=LOGIN_ID, idle_timeout=wish))
        begun = time.monotonic()
        self.send(frame)
        self._login = self._judge.logged_in(self.uid, Sent(begun, time.monotonic()))
        self._is_connecting = False

    def _give_up(self, number: int) -> None:
        if number == self._tries and self.fd != AWAY and not self.is_in:
            self.drop()
            self._unanswered(time.monotonic())
            self._failed("the login was not answered")

    def _unanswered(self, now: float) -> None:
        if self._login is not None:
            self._judge.closed(self._login, Sent(now, now))
            self._login = None

    def _failed(self, why: str) -> None:
        self._run.report("login", None, failure=why)
        self._come_back()

    def entered(self, payload: Mapping[str, Any], now: float) -> None:
        """See `LoopClient`."""
        assert self._login is not None
        session, self._login = self._login, None
        self._judge.answered(session, now, payload["session"], payload["idle_timeout"], payload["time_ms"])
        self._run.took("login", now - session.login.begun)
        self._let_go()  # the server has let it go already, or does so now
        if self._session is None:
            self._run.peers.append(self.uid)
        self._session = session
        self._asked.clear()
        self._attempts = 0
        self._beat_s = payload["keepalive"]
        self._beat_later(session, now + random.uniform(0, self._beat_s))
        self._plan(session)

    def _let_go(self) -> None:
        if self._left_open != AWAY:
            os.close(self._left_open)
            self._left_open = AWAY

    def ended(self, payload: Mapping[str, Any] | None, now: float) -> None:
        """See `LoopClient`."""
        retry_after_s = float((payload or NOTHING).get("retry_after", 0.0))
        if self._login is not None:
            self._unanswered(now)
            if payload:
                is_limit = payload["code"] == Code.BUSY  # a promise, too: over its limits the server refuses
                reason = payload["reason"]
                self._run.report(f"login refused, {reason}", None, None if is_limit else reason)
                self._come_back(retry_after_s)
            else:
                self._failed("closed by the server")
        elif self._is_connecting:
            self._failed("no connection")
        else:
            self._dropped(payload, now, retry_after_s)

    def _dropped(self, payload: Mapping[str, Any] | None, now: float, retry_after_s: float) -> None:
        """The connection of a session has ended, by a goodbye or without."""
        assert self._session is not None
        if payload:
            self._run.report(f"goodbye {payload['reason']}", None)
            if payload["code"] == Code.IDLE_TIMEOUT:
                self._judge.closed(self._session, Sent(now, now))
                if not self._session.silent:  # else it is back when its silence is over
                    self._come_back(retry_after_s)
                return
        self._lost(now, "" if payload else "closed by the server", retry_after_s)

    def _lost(self, now: float, failure: str, retry_after_s: float = 0.0) -> None:
        assert self._session is not None
        if failure:
            self._run.report("connection lost", None, failure=failure)
        self._judge.lost(self._session, now)
        self._come_back(retry_after_s)

    def _come_back(self, at_least_s: float = 0.0) -> None:
        self.loop.at(time.monotonic() + max(at_least_s, back_off_s(self._attempts)), self.connect)

    # Beating and asking

    def _beat_later(self, session: JudgedSession, due: float) -> None:
        self._beat_due = due
        self.loop.at(due, partial(self._beat, session, due))

    def _beat(self, session: JudgedSession, due: float) -> None:
        if due != self._beat_due or not self._lives(session) or session.silent or session.logout:
            return
        now = time.monotonic()
        if now - due > LATE_BEAT_S:
            self._run.took(LATE, now - due)
        self._beats += 1
        if self._beats % ASKED_SHARE == 0:
            if ASKING_ID in self._asked:
                self._run.report(ANSWERED, None, failure="not answered until the next was asked")
            if sent := self._tell(ASKING_BEAT):
                self._asked[ASKING_ID] = ANSWERED, sent.begun
        elif self._tell(protocol.KEEPALIVE):
            self._run.took("keepalive")
        # By when it was due, not by when it was sent: a slow server must not slow its load down.
        self._beat_later(session, max(now, due + self._beat_s * random.uniform(0.8, 1.0)))

    def _tell(self, frame: bytes) -> Sent | None:
        """Send; None if that cannot be, and the connection is over."""
        begun = time.monotonic()
        is_sent = self.put(frame)
        now = time.monotonic()
        assert self._session is not None
        if not is_sent:
            self.drop()
            self._lost(now, "the server does not read")
            return None
        sent = Sent(begun, now)
        self._judge.sent(self._session, sent)
        return sent

    def _ask(self, name: str, packet: Packet) -> Sent | None:
        assert packet.id is not None
        if sent := self._tell(protocol.encode(packet)):
            self._asked[packet.id] = name, sent.begun
        return sent

    def heard(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        """See `LoopClient`."""
        if id is None or id not in self._asked:
            return
        name, begun = self._asked.pop(id)
        if kind == Kind.OK:
            self._run.took(name, now - begun)
            if name == "logout":
                self._logged_out(now)
        elif payload["code"] in _EXPECTED:
            self._run.report(f"{name}, answered {payload['reason']}", now - begun)
        else:
            self._run.report(name, now - begun, failure=payload["reason"])

    # What it does

    def _lives(self, session: JudgedSession) -> bool:
        return session is self._session and self.is_in and self._login is None

    def _plan(self, session: JudgedSession) -> None:
        act = self._run.scenario.next(time.monotonic(), time.time())
        if act.at < float("inf"):
            self.loop.at(act.at, partial(self._act, session, act.name))

    def _act(self, session: JudgedSession, name: str) -> None:
        if self._lives(session) and self._acts[name](self, session):
            self._plan(session)

    def _nothing(self, session: JudgedSession) -> bool:
        """Beat on."""
        return True

    def _message(self, session: JudgedSession) -> bool:
        """Send a message to a device that is or was online."""
        recipient = random.choice(self._run.peers)
        sent = self._ask("message", protocol.message(recipient, "hello", id=next(self._ids)))
        return sent is not None

    def _fall_silent(self, session: JudgedSession) -> bool:
        """Fall silent: briefly, until just about the time-out, or for long."""
        return self._silence(session, random.choices([*SILENCES], [*SILENCES.values()])[0])

    def _fall_silent_together(self, session: JudgedSession) -> bool:
        """Fall silent until offline, as all others do now."""
        return self._silence(session, "long")

    def _silence(self, session: JudgedSession, kind: str) -> bool:
        """Send nothing more for a while, with the connection open; what the server says is read."""
        options, timeout_s, last = self._run.options, session.idle_timeout, session.last_sent().done
        out_s = {
            "brief": random.uniform(0.4, 0.9) * timeout_s,
            "taken over": random.uniform(0.4, 0.9) * timeout_s,
            "edge": timeout_s + random.uniform(-0.2, 1.2) * options.tick,
            "long": timeout_s + options.tick + options.slack + random.uniform(0, timeout_s / 2),
        }[kind]
        self._judge.silent(session)
        self.loop.at(last + out_s, partial(self._wake, session, kind))
        return False

    def _wake(self, session: JudgedSession, kind: str) -> None:
        if session is not self._session or not session.silent:
            return
        if self.is_in and kind == "taken over":
            self._left_open = self.leave_open()
            self.connect()  # elsewhere, as far as the server can see: the first connection is still open
        elif self.is_in:
            session.silent = False
            self._beat_later(session, time.monotonic())
            self._plan(session)
        else:
            self.connect()

    def _away(self, session: JudgedSession, within_share: float = 0.5) -> bool:
        """Lose the connection, and come back within the grace or after it."""
        options, closed = self._run.options, self._close(reset=random.random() < 0.5)
        idle_s = session.last_sent().begun + session.idle_timeout - closed
        grace_s = max(0.0, min(options.disconnect_grace, idle_s))
        if random.random() < within_share:
            out_s = random.uniform(0, 0.8) * grace_s
        else:
            out_s = grace_s + options.tick + options.slack + random.uniform(0, session.idle_timeout / 2)
        self.loop.at(closed + out_s, self.connect)
        return False

    def _flap(self, session: JudgedSession) -> bool:
        """Lose the connection, mostly for a moment."""
        return self._away(session, FLAP_SHARE)

    def _storm(self, session: JudgedSession) -> bool:
        """Lose the connection when all do, and come back as a client library does."""
        self.loop.at(self._close(reset=True) + random.uniform(0, STORM_BACK_S), self.connect)
        return False

    def _close(self, *, reset: bool = False) -> float:
        """Close the connection without a word; return when."""
        assert self._session is not None
        begun = time.monotonic()
        self.drop(reset=reset)
        self._judge.closed(self._session, Sent(begun, time.monotonic()))
        return begun

    def _logout(self, session: JudgedSession) -> bool:
        """Log out, and return immediately or later."""
        sent = self._ask("logout", protocol.logout(id=next(self._ids)))
        if sent:
            self._judge.logs_out(session, sent)
            self.loop.at(sent.begun + ANSWER_TIMEOUT_S, partial(self._miss_logout, session))
        return False

    def _miss_logout(self, session: JudgedSession) -> None:
        if self._lives(session):
            self.drop()
            self._lost(time.monotonic(), "the logout was not answered")

    def _logged_out(self, now: float) -> None:
        assert self._session is not None
        self._judge.logged_out(self._session)
        self.drop()
        is_back_at_once = random.random() < 0.5
        out_s = 0.0 if is_back_at_once else random.uniform(0, self._session.idle_timeout)
        self.loop.at(now + out_s, self.connect)

    _acts: ClassVar[Mapping[str, Callable[["Device", JudgedSession], bool]]] = {
        "nothing": _nothing,
        "message": _message,
        "silence": _fall_silent,
        "away": _away,
        "logout": _logout,
        "flap": _flap,
        "storm": _storm,
        "all silent": _fall_silent_together,
    }
