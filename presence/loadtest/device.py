"""One device: a connection, a session, keepalives sent when they are due, and its misadventures.

It reports everything that it does to the judge; nothing here decides what the server should make of it.
A subclass adds keys to the login in `login_keys`, and requests of its own in `on_online` and `on_push`; its
users name it as their `device_class`.
"""

import itertools
import math
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from presence import protocol
from presence.loadtest.client_loop import (
    EMPTY_PAYLOAD,
    KEEPALIVE_ID,
    KEEPALIVE_WITH_ID,
    LOGIN_ID,
    NO_CONNECTION,
    ClientLoop,
    LoopClient,
    backoff_s,
)
from presence.loadtest.judge import DeviceFinding, DeviceJudge, JudgedSession, Sent
from presence.loadtest.options import (
    JOINT_ACTION_ROW,
    JOINT_ACTIONS,
    JOINT_RETURN_ROW,
    NOTHING,
    STORM_RETURN_S,
    Act,
)
from presence.protocol import Code, Kind, Packet

ANSWER_TIMEOUT_S = 10.0  # for any request: a server at its limits refuses, it does not delay
KEEPALIVES_PER_ANSWER = 3  # every third keepalive asks for an answer, as the specification advises
LATE_KEEPALIVE_S = 0.25  # later than this, the load generator is at its limits
FLAP_SHARE = 0.9  # of flaps are within the grace: a tunnel, another cell; the rest are longer
ANSWERED = "keepalive, answered"
NOT_ANSWERED = "not answered"
ENDED = "the server ended a session without a reason that the device gave"
LATE = "(load generator late with a keepalive)"
SILENCE_WEIGHTS = {"brief": 2, "taken over": 1, "edge": 1, "long": 4}


class Run:
    """The run of some devices: what they share, and where they report.

    Args:
        target: the server as host and port, for reports.
        name: prefix of the uids.

    Attributes:
        peers: devices that were online once, to send messages to.
        tls: None: without TLS.
        server_name: that the certificate must have.
        idle_timeout_wish: that logins ask for, seconds; None: they ask for none.
    """

    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    idle_timeout_wish: float | None = None

    def __init__(self, loop: ClientLoop, judge: DeviceJudge, target: str, name: str) -> None:
        self.loop, self.judge, self.target = loop, judge, target
        self.uids = (f"{name}-{number}" for number in itertools.count())
        self.peers: list[str] = []

    def get_token(self, _uid: str, on_token: Callable[[str, str], object]) -> None:
        """Call `on_token`, now or later, with a token and "", or with "" and why there is no token."""
        on_token("", "")

    def next_act(self) -> Act:
        """Return what the device that asks does next."""
        return Act(math.inf, NOTHING)

    def record_time(self, name: str, seconds: float | None = None) -> None:
        """Count something frequent, with the seconds that it took."""

    def report_exchange(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        """Report an exchange with the server, or why it failed."""

    def report_promise(self, finding: DeviceFinding) -> None:
        """Report what the judge found."""


class LoadDevice(LoopClient):
    """A device that logs in, sends keepalives at the server's interval, and follows the scenario.

    Attributes:
        expected_codes: of errors that answer a request and are no failure.
    """

    expected_codes: ClassVar[tuple[Code, ...]] = (
        Code.UNSUPPORTED,
        Code.RECIPIENT_OFFLINE,
        Code.RECIPIENT_DISCONNECTED,
        Code.RATE_LIMITED,
    )
    is_member = False  # its keepalives have a schedule of their own

    def __init__(self, run: Run) -> None:
        super().__init__(run.loop, next(run.uids))
        self.reconnects = False
        self.context = run.tls
        self.server_name = run.server_name
        self._token = ""
        self._run = run
        self._judge = run.judge
        self._ids = itertools.count(KEEPALIVE_ID + 1)
        self._keepalives_sent = random.randrange(KEEPALIVES_PER_ANSWER)
        self._login: JudgedSession | None = None  # that was sent and is not answered yet
        self._session: JudgedSession | None = None  # the present or last one
        self._requests: dict[int, tuple[str, float]] = {}  # not answered yet, in the order of their sending
        self._keepalive_s = 0.0
        self._keepalive_due = 0.0
        self._attempts = self._connects = 0
        self._is_connecting = False
        self._abandoned_fd = NO_CONNECTION  # a connection that is silent until the next login is granted
        self._is_stopped = False
        self._is_in_joint_action = False

    def start(self, within_s: float) -> None:
        """Log in some time."""
        self.loop.call_at(time.monotonic() + random.uniform(0, within_s), self.connect)

    def stop(self) -> None:
        """Vanish without a logout."""
        self._is_stopped = True
        if self.is_logged_in:
            self._close_connection()
        self.close()
        self._close_abandoned()

    # Logging in

    def connect(self) -> None:
        """Open a connection once there is a token; on failure retry later."""
        if not self._is_stopped:
            self._attempts += 1
            self._run.get_token(self.uid, self._connect_with)

    def _connect_with(self, token: str, failure: str) -> None:
        # Both the end of a silence and the loss of its connection may lead here.
        if self._is_stopped or self.fd != NO_CONNECTION:
            return
        if failure:
            self._login_failed(failure)
            return
        self._token = token
        self._connects += 1
        try:
            self.loop.open_connection(self)
        except OSError as error:
            self._login_failed(self._unreachable(error.strerror or str(error)))
        else:
            self._is_connecting = True
            self.loop.call_at(
                time.monotonic() + ANSWER_TIMEOUT_S, partial(self._login_timed_out, self._connects)
            )

    def on_connected(self) -> None:
        wish = self._run.idle_timeout_wish
        login = protocol.login(
            self.uid, id=LOGIN_ID, idle_timeout=wish, token=self._token or None, **self.login_keys()
        )
        frame = protocol.encode(login)
        started = time.monotonic()
        self.send(frame)
        self._login = self._judge.login_sent(self.uid, Sent(started, time.monotonic()))
        self._is_connecting = False

    def _login_timed_out(self, number: int) -> None:
        if number == self._connects and self.fd != NO_CONNECTION and not self.is_logged_in:
            self.close()
            self._drop_pending_login(time.monotonic())
            self._login_failed("the login was not answered")

    def _drop_pending_login(self, now: float, *, is_refused: bool = False) -> None:
        """Forget a login that was not granted; unless it was refused, the server may have granted it."""
        if self._login is not None:
            if is_refused:
                self._judge.login_refused(self._login)
            else:
                self._judge.connection_closed(self._login, Sent(now, now))
            self._login = None

    def _login_failed(self, why: str) -> None:
        self._run.report_exchange("login", None, failure=why)
        self._reconnect_later()

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        assert self._login is not None
        session, self._login = self._login, None
        self._judge.login_answered(
            session, now, payload["session"], payload["idle_timeout"], payload["time_ms"]
        )
        self._run.record_time("login", now - session.login.start)
        self._close_abandoned()  # the server has let it go already, or does so now
        if self._is_in_joint_action:
            self._run.record_time(JOINT_RETURN_ROW)
            self._is_in_joint_action = False
        if self._session is None:
            self._run.peers.append(self.uid)
        self._session = session
        self._requests.clear()
        self._attempts = 0
        self._keepalive_s = payload["keepalive"]
        self._schedule_keepalive(session, now + random.uniform(0, self._keepalive_s))
        self._schedule_action(session)
        self.on_online()

    def _close_abandoned(self) -> None:
        if self._abandoned_fd != NO_CONNECTION:
            os.close(self._abandoned_fd)
            self._abandoned_fd = NO_CONNECTION

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        retry_after_s = float((payload or EMPTY_PAYLOAD).get("retry_after", 0.0))
        if self._login is not None:
            self._drop_pending_login(now, is_refused=payload is not None)
            if payload:
                is_limit = payload["code"] == Code.BUSY  # a promise, too: over its limits the server refuses
                failure = None if is_limit else self._refusal(payload)
                self._run.report_exchange(f"login refused, {payload['reason']}", None, failure)
                self._reconnect_later(retry_after_s)
            else:
                self._login_failed("closed by the server")
        elif self._is_connecting:
            self._login_failed(self._unreachable(self.connect_error or "closed before the login"))
        else:
            self._session_disconnected(payload, now, retry_after_s)

    def _unreachable(self, why: str) -> str:
        return f"no connection to {self._run.target}: {why}"

    def _refusal(self, payload: Mapping[str, Any]) -> str:
        """Return why the server refused a login, in words that are the same for all devices."""
        why: str = payload["message"]
        match payload["code"]:
            case Code.PROTOCOL_ERROR if self.context is None:
                return f"{why} (with TLS: --host presences://{self._run.target})"
            case Code.AUTH_FAILED if not self._token:
                return f"{why} (give --token-key-file or --token-command)"
            case Code.PROTOCOL_ERROR | Code.AUTH_FAILED:
                return why
        return str(payload["reason"])

    def _session_disconnected(
        self, payload: Mapping[str, Any] | None, now: float, retry_after_s: float
    ) -> None:
        """The connection of a session has ended, with a goodbye or without."""
        assert self._session is not None
        self._report_unanswered(now)
        if payload:
            if payload["code"] != Code.IDLE_TIMEOUT:
                failure = None if payload["code"] == Code.SERVER_DRAIN else ENDED
                self._run.report_exchange(f"goodbye {payload['reason']}", None, failure)
            else:
                self._run.report_promise(self._judge.goodbye_read(self._session, now))
                self._judge.connection_closed(self._session, Sent(now, now))
                if not self._session.is_silent:  # else it is back when its silence is over
                    self._reconnect_later(retry_after_s)
                return
        self._connection_lost(now, "" if payload else "closed by the server", retry_after_s)

    def _connection_lost(self, now: float, failure: str, retry_after_s: float = 0.0) -> None:
        assert self._session is not None
        if failure:
            self._run.report_exchange("connection lost", None, failure=failure)
        self._judge.connection_lost(self._session, now)
        self._reconnect_later(retry_after_s)

    def _reconnect_later(self, at_least_s: float = 0.0) -> None:
        self.loop.call_at(time.monotonic() + max(at_least_s, backoff_s(self._attempts)), self.connect)

    # Beating and asking

    def _schedule_keepalive(self, session: JudgedSession, due: float) -> None:
        self._keepalive_due = due
        self.loop.call_at(due, partial(self._send_due_keepalive, session, due))

    def _send_due_keepalive(self, session: JudgedSession, due: float) -> None:
        if due != self._keepalive_due or not self._is_current(session) or session.is_silent or session.logout:
            return
        now = time.monotonic()
        if now - due > LATE_KEEPALIVE_S:
            self._run.record_time(LATE, now - due)
        self._report_unanswered(now)
        self._keepalives_sent += 1
        if self._keepalives_sent % KEEPALIVES_PER_ANSWER == 0:
            if self._requests.pop(KEEPALIVE_ID, None):
                self._run.report_exchange(ANSWERED, None, failure="not answered until the next was asked")
            if sent := self._send_packet(Kind.KEEPALIVE, KEEPALIVE_WITH_ID):
                self._requests[KEEPALIVE_ID] = ANSWERED, sent.start
        elif self._send_packet(Kind.KEEPALIVE, protocol.KEEPALIVE):
            self._run.record_time("keepalive")
        # By when it was due, not by when it was sent: a slow server must not slow its load down.
        self._schedule_keepalive(session, max(now, due + self._keepalive_s * random.uniform(0.8, 1.0)))

    def _send_packet(self, kind: int, frame: bytes) -> Sent | None:
        """Send; None if the server does not read, which ends the connection."""
        started = time.monotonic()
        is_sent = self.try_send(frame)
        now = time.monotonic()
        assert self._session is not None
        if not is_sent:
            self.close()
            self._connection_lost(now, "the server does not read")
            return None
        sent = Sent(started, now)
        if protocol.is_activity(kind):
            self._judge.packet_sent(self._session, sent)
        return sent

    def request(self, name: str, packet: Packet) -> Sent | None:
        """Send a packet, with an id; the time until its answer is the row `name` of the report.

        Returns:
            when it was sent; None if the device is silent or leaving, or if the server does not read.
        """
        session = self._session
        id = next(self._ids)
        if session is None or not self._is_current(session) or session.is_silent or session.logout:
            return None
        if sent := self._send_packet(packet.kind, protocol.encode(packet._replace(id=id))):
            self._requests[id] = name, sent.start
        return sent

    def _report_unanswered(self, now: float) -> None:
        """Report the requests that the server should have answered by now."""
        while self._requests:
            id, (name, started) = next(iter(self._requests.items()))
            if now - started < ANSWER_TIMEOUT_S:
                return  # those behind it were sent later
            del self._requests[id]
            self._run.report_exchange(name, None, failure=NOT_ANSWERED)

    @property
    def peers(self) -> Sequence[str]:
        """The uids of devices that have been online."""
        return self._run.peers

    def login_keys(self) -> Mapping[str, Any]:
        """Return more arguments of `presence.protocol.login`, for the next login; a hook for subclasses."""
        return EMPTY_PAYLOAD

    def on_online(self) -> None:
        """The login was granted; a hook for subclasses."""

    def on_push(self, kind: int, payload: Mapping[str, Any]) -> None:
        """The server sent a packet that answers no request; a hook for subclasses."""

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if id is None:
            self.on_push(kind, payload)
        if id is None or id not in self._requests:
            return
        name, started = self._requests.pop(id)
        if kind == Kind.OK:
            self._run.record_time(name, now - started)
            if name == "logout":
                self._logout_confirmed(now)
        elif payload["code"] in self.expected_codes:
            self._run.report_exchange(f"{name}, answered {payload['reason']}", now - started)
        else:
            self._run.report_exchange(name, now - started, failure=payload["reason"])

    # What it does

    def _is_current(self, session: JudgedSession) -> bool:
        return session is self._session and self.is_logged_in and self._login is None

    def _schedule_action(self, session: JudgedSession) -> None:
        act = self._run.next_act()
        if act.due < float("inf"):
            self.loop.call_at(act.due, partial(self._perform, session, act.name))

    def _perform(self, session: JudgedSession, name: str) -> None:
        if not self._is_current(session):
            return
        if name in JOINT_ACTIONS.values():
            self._run.record_time(JOINT_ACTION_ROW)
            self._is_in_joint_action = True
        if self._actions[name](self, session):
            self._schedule_action(session)

    def _do_nothing(self, session: JudgedSession) -> bool:
        return True

    def _send_message(self, session: JudgedSession) -> bool:
        """Send a message to a device that is or was online."""
        recipient = random.choice(self._run.peers)
        sent = self.request("message", protocol.message(recipient, "hello"))
        return sent is not None

    def _fall_silent(self, session: JudgedSession) -> bool:
        """Fall silent: briefly, until about the time-out, or for long."""
        return self._stop_sending(session, random.choices([*SILENCE_WEIGHTS], [*SILENCE_WEIGHTS.values()])[0])

    def _fall_silent_until_offline(self, session: JudgedSession) -> bool:
        """Fall silent until offline, as all others do now."""
        return self._stop_sending(session, "long")

    def _stop_sending(self, session: JudgedSession, kind: str) -> bool:
        """Send nothing for a while, with the connection open; the server's packets are read."""
        due, timeout_s, last = self._judge.deadlines, session.idle_timeout, session.last_packet().end
        out_s = {
            "brief": random.uniform(0.4, 0.9) * timeout_s,
            "taken over": random.uniform(0.4, 0.9) * timeout_s,
            "edge": timeout_s + random.uniform(-0.2, 1.2) * due.tick_s,
            "long": timeout_s + due.tick_s + due.slack_s + random.uniform(0, timeout_s / 2),
        }[kind]
        self._judge.silence_began(session)
        self.loop.call_at(last + out_s, partial(self._end_silence, session, kind))
        return False

    def _end_silence(self, session: JudgedSession, kind: str) -> None:
        if session is not self._session or not session.is_silent:
            return
        if self.is_logged_in and kind == "taken over":
            self._abandoned_fd = self.detach()
            self.connect()  # elsewhere, as far as the server can see: the first connection is still open
        elif self.is_logged_in:
            if kind == "long":
                finding = DeviceFinding("goodbye idle_timeout", None, "no goodbye in time", self.uid)
                self._run.report_promise(finding)
            session.is_silent = False
            self._schedule_keepalive(session, time.monotonic())
            self._schedule_action(session)
        else:
            self.connect()

    def _lose_connection(self, session: JudgedSession, within_share: float = 0.5) -> bool:
        """Lose the connection, and return within the grace or after it."""
        due, closed = self._judge.deadlines, self._close_connection(reset=random.random() < 0.5)
        idle_s = session.last_packet().start + session.idle_timeout - closed
        grace_s = max(0.0, min(due.grace_s, idle_s))
        if random.random() < within_share:
            out_s = random.uniform(0, 0.8) * grace_s
        else:
            out_s = grace_s + due.tick_s + due.slack_s + random.uniform(0, session.idle_timeout / 2)
        self.loop.call_at(closed + out_s, self.connect)
        return False

    def _flap(self, session: JudgedSession) -> bool:
        """Lose the connection, mostly for a moment."""
        return self._lose_connection(session, FLAP_SHARE)

    def _reconnect_with_all(self, session: JudgedSession) -> bool:
        """Lose the connection together with all others, and return as a client library does."""
        self.loop.call_at(
            self._close_connection(reset=True) + random.uniform(0, STORM_RETURN_S), self.connect
        )
        return False

    def _close_connection(self, *, reset: bool = False) -> float:
        """Close the connection without a logout; return when."""
        assert self._session is not None
        started = time.monotonic()
        self._report_unanswered(started)
        self.close(reset=reset)
        self._judge.connection_closed(self._session, Sent(started, time.monotonic()))
        return started

    def _log_out(self, session: JudgedSession) -> bool:
        """Log out, and return immediately or later."""
        sent = self.request("logout", protocol.logout())
        if sent:
            self._judge.logout_sent(session, sent)
            self.loop.call_at(sent.start + ANSWER_TIMEOUT_S, partial(self._logout_timed_out, session))
        return False

    def _logout_timed_out(self, session: JudgedSession) -> None:
        if self._is_current(session):
            self.close()
            self._connection_lost(time.monotonic(), "the logout was not answered")

    def _logout_confirmed(self, now: float) -> None:
        assert self._session is not None
        self._judge.logout_confirmed(self._session)
        self.close()
        returns_now = random.random() < 0.5
        out_s = 0.0 if returns_now else random.uniform(0, self._session.idle_timeout)
        self.loop.call_at(now + out_s, self.connect)

    _actions: ClassVar[Mapping[str, Callable[["LoadDevice", JudgedSession], bool]]] = {
        "nothing": _do_nothing,
        "message": _send_message,
        "silence": _fall_silent,
        "away": _lose_connection,
        "logout": _log_out,
        "flap": _flap,
        "storm": _reconnect_with_all,
        "all silent": _fall_silent_until_offline,
    }
