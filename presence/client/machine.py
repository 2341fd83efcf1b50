"""What a client sends when, and what an answer means: no I/O, and time and chance are arguments.

A shell moves the bytes. It connects while the state is CONNECTING, reads and writes while `connected`,
closes the connection as soon as it no longer is, and calls `tick` when `deadline` has come (after it
has read what lies there: an answer that came in time must not be taken for one that did not come).
Each input returns what it caused, in order; `take_outgoing` returns what is to be sent. While
`wants_token`, the shell asks the program for one, once at a time, and calls `fetched` with what came of it.

    FETCHING_TOKEN → CONNECTING → LOGGING_IN → ONLINE → LOGGING_OUT → ENDED
          ↑ ↓           ↑ ↓           ↓          ↓
          WAITING ←─────┴─┴───────────┴──────────┘        and from any state to ENDED
"""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from presence import protocol
from presence.client.connection import TOKEN_TIMEOUT_S, Connection
from presence.client.errors import ENDED, ConnectionLost, Ended, NotConnected, NoToken, PresenceError
from presence.client.inbox import Inbox
from presence.client.pushes import Connected, Disconnected, Goodbye
from presence.client.reconnect import Chance, Loss, Returning
from presence.client.session import ASK_EVERY, Beats, Caused, RequestResult
from presence.client.state import Lasting
from presence.client.types import CONNECTED, State, Statistics, given, left_s
from presence.protocol import Code, Kind, Packet, ProtocolError

CONNECT_TIMEOUT_S = 10.0  # name, TCP and TLS; a SYN that got lost is repeated after 1, 3 and 7 s
LOGIN_TIMEOUT_S = 6.0  # a server refuses a login that lay unread for 5 s, so waiting longer is in vain
LOGOUT_TIMEOUT_S = 2.0
KEEPALIVE_SHARE = 0.4  # of the idle time-out, for a server that does not tell how often to beat
IDLE_TIMEOUT_DEFAULT_S = 30.0  # and for one that tells neither
_LOGIN_ID = 1


class ClientMachine:
    """One client, from its first attempt to its end.

    Args:
        login: what to log in with, without an id.
        now: monotonic seconds; every `now` is of the same clock.
        server, persistent: see `Returning`.
        fetches: whether the program is asked for a token before each login, and before one ends.
        ask_every: see `Beats`.
        chance: uniform in [0, 1).

    Attributes:
        lasting: what it keeps over all connections: the login, which may be changed, and whom it watches.
        error: why it has ended; None while it has not, and after its own logout or close.

    Raises:
        protocol.EncodeError: the login breaks a rule of the protocol.
    """

    def __init__(
        self,
        login: Packet,
        now: float,
        *,
        server: str = "the server",
        persistent: bool = True,
        fetches: bool = False,
        ask_every: int = ASK_EVERY,
        chance: Chance = random.random,
    ) -> None:
        self.lasting = Lasting(login._replace(id=_LOGIN_ID), names_token=fetches)
        self._fetches = fetches
        self._ask_every = ask_every
        self._chance = chance
        self._decoder = protocol.Decoder()
        self._ids = itertools.count(_LOGIN_ID + 1)
        self._logout_id: int | None = None
        self._outgoing = bytearray()
        self._connection: Connection | None = None
        self.returns = Returning(server, persistent, fetches, chance)
        self.state, self._due = self._attempt(now)
        self.error: PresenceError | None = None
        self.beats = 0
        self._offset_s: float | None = None  # from `now` to Unix seconds by the clock of the last server

    # What the shell asks

    @property
    def connected(self) -> bool:
        """Whether the shell should hold a connection."""
        return self.state in CONNECTED

    @property
    def wants_token(self) -> bool:
        """Whether the program is to be asked for a token now, unless that is under way already."""
        if self.state is State.ONLINE and self._connection is not None:
            return self._connection.renewal.wanted
        return self.state is State.FETCHING_TOKEN

    @property
    def deadline(self) -> float:
        """When `tick` is to be called; infinite after the end."""
        if self.state is State.ONLINE and self._connection is not None:
            return self._connection.deadline
        return math.inf if self.state is State.ENDED else self._due

    def statistics(self, inbox: Inbox) -> Statistics:
        """Read the counters."""
        round_trip_s = self._connection.beats.round_trip_s if self._connection else None
        pushes = len(inbox), inbox.superseded, inbox.dropped
        return Statistics(self.returns.logins, self.returns.losses, self.beats, round_trip_s, *pushes)

    @property
    def has_outgoing(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._outgoing)

    def over(self) -> PresenceError:
        """Return what to raise to those who ask an ended client for something."""
        return self.error or Ended(Code.LOGOUT, Code.LOGOUT.reason, "this client was logged out or closed")

    def take_outgoing(self) -> bytes:
        """Return what is to be sent on the present connection, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # What the shell tells

    def fetched(self, token: str | Exception, now: float) -> Caused:
        """The program gave a token, or failed to; one that is not wanted any more is passed over."""
        if not self.wants_token:
            return []
        if self._connection is not None:
            self._connection.renewal.take(token, now)
            return []
        if self.returns.refusal is not None and (stale := self._stale(token, now)):
            return self._lose(Loss("no_token", stale, failure=self.returns.refusal), now)
        try:
            self.lasting.log_in_with(token=given(token))
        except Exception as error:
            failure = NoToken(error)
            return self._lose(Loss("no_token", str(failure), failure=failure), now)
        self.state, self._due = State.CONNECTING, now + CONNECT_TIMEOUT_S
        return []

    def established(self, now: float) -> None:
        """The connection stands: log in."""
        self._decoder = protocol.Decoder()
        self._outgoing[:] = protocol.encode(self.lasting.login)
        self.state, self._due = State.LOGGING_IN, now + LOGIN_TIMEOUT_S

    def received(self, data: bytes | bytearray, now: float) -> Caused:
        """Bytes were read; what follows the end of a connection is dropped."""
        caused: Caused = []
        if self._connection is not None:
            self._connection.beats.heard(now)
        try:
            self._decoder.feed(data)
            while self.connected and (packet := self._decoder.next()) is not None:
                caused += self._take(packet, now)
        except ProtocolError as error:
            caused += self._lose(Loss("bad_server", error.message), now)
        return caused

    def disconnected(self, message: str, now: float) -> Caused:
        """The connection ended, or could not be made; `message` says why, for people."""
        if self.state is State.CONNECTING:
            return self._lose(Loss("unreachable", message), now)
        if not self.connected:
            return []
        if self._connection is not None and self._connection.refusal is not None:
            return self._end(_ended(*self._connection.refusal))
        return self._lose(Loss("closed", message), now)

    def tick(self, now: float) -> Caused:
        """Time has passed; harmless before the deadline."""
        if self.state is State.ONLINE and self._connection is not None:
            return self._live(self._connection, now)
        if now < self._due:
            return []
        caused: Caused = []
        if self.state is State.WAITING:
            self.state, self._due = self._attempt(now)
        elif self.state is State.FETCHING_TOKEN:
            caused = self.fetched(TimeoutError(f"none came within {TOKEN_TIMEOUT_S:.0f} s"), now)
        elif self.state is State.CONNECTING:
            caused = self._lose(Loss("unreachable", f"no connection within {CONNECT_TIMEOUT_S:.0f} s"), now)
        elif self.state is State.LOGGING_IN:
            message = f"no answer to the login within {LOGIN_TIMEOUT_S:.0f} s"
            caused = self._lose(Loss("login_timeout", message), now)
        elif self.state is State.LOGGING_OUT and self._connection is not None:
            caused = [*self._connection.tick(now), *self._end(None)]
        return caused

    def request(self, packet: Packet, timeout_s: float, now: float, *, retries: bool = False) -> int:
        """Send a request and return its id; one `RequestResult` follows. See `ClientSession.request`.

        Raises:
            NotConnected, Ended: not logged in now, or over for good.
            protocol.EncodeError: the packet breaks a rule of the protocol.
        """
        if self.state is State.ENDED:
            raise self.over().with_traceback(None)
        if self.state is not State.ONLINE or self._connection is None:
            raise NotConnected(f"{self.state.value}: nothing was sent")
        return self._connection.request(packet, timeout_s, now, retries=retries)

    def log_out(self, reason: str | None, now: float) -> int:
        """Send the logout: the user is offline as soon as the server reads it. Its `RequestResult` follows.

        Raises `Ended`, `protocol.EncodeError` for a reason that the protocol does not know, or
        `NotConnected`: the client has ended all the same; a session of an earlier connection ends by itself.
        """
        try:
            self._logout_id = self.request(protocol.logout(reason), LOGOUT_TIMEOUT_S, now)
        except NotConnected:
            if self.state is not State.LOGGING_OUT:
                self._end(None)
            raise
        self.state, self._due = State.LOGGING_OUT, now + LOGOUT_TIMEOUT_S
        return self._logout_id

    def close(self) -> Caused:
        """End without a logout: the user is offline after the server's grace for lost connections."""
        return [] if self.state is State.ENDED else self._end(None)

    def watch_nowait(self, uids: list[str], now: float) -> None:
        """Watch some from now on, with a connection or without one; what they are comes as a change.

        Raises `Ended`, or `protocol.EncodeError` for what are no uids, or too many.
        """
        if self.state is State.ENDED:
            raise self.over().with_traceback(None)
        protocol.encode(protocol.watch(uids), protocol.FRAME_LIMIT_BYTES)
        new = self.lasting.watches.expect(uids)
        if new and self._connection is not None and self.state is State.ONLINE:
            self._connection.rewatching.add(new, now)

    def unwatch(self, uids: list[str] | None, timeout_s: float, now: float) -> int | None:
        """Watch some no more, or nobody; None: no server has to be told, for there is no connection.

        Raises `Ended`, or `protocol.EncodeError` for what are no uids.
        """
        try:
            return self.request(protocol.unwatch(uids), timeout_s, now)
        except NotConnected:
            protocol.encode(protocol.unwatch(uids), protocol.FRAME_LIMIT_BYTES)
            self.lasting.watches.forget(uids)
            return None

    def give_up(self, id: int) -> None:
        """Nobody waits for the answer to this request any more; a watch is taken back."""
        if self._connection is not None:
            self._connection.give_up(id)

    # What follows

    def _stale(self, token: str | Exception, now: float) -> str:
        """Return why a token need not be tried after one was refused; "" if it may be a fresh one."""
        if token == self.lasting.token:
            return "the token is the one that the server has refused"
        if isinstance(token, str) and self._offset_s is not None:
            left = left_s(token, now + self._offset_s)
            if left is not None and left <= 0:
                return "the token has expired"
        return ""

    def _attempt(self, now: float) -> tuple[State, float]:
        """Return what an attempt to come online begins with, and until when that may take."""
        if self._fetches:
            return State.FETCHING_TOKEN, now + TOKEN_TIMEOUT_S
        return State.CONNECTING, now + CONNECT_TIMEOUT_S

    def _take(self, packet: Packet, now: float) -> Caused:
        if packet.kind == Kind.GOODBYE:
            return self._take_goodbye(packet.payload, now)
        if self._connection is None:
            return self._take_login_answer(packet, now)
        caused = self._connection.take(packet, now)
        over = any(isinstance(each, RequestResult) and each.id == self._logout_id for each in caused)
        return caused + self._end(None) if over else caused

    def _take_login_answer(self, packet: Packet, now: float) -> Caused:
        payload = packet.payload
        if packet.kind == Kind.OK and packet.id == _LOGIN_ID:
            idle_timeout = payload.get("idle_timeout", IDLE_TIMEOUT_DEFAULT_S)
            keepalive = payload.get("keepalive", KEEPALIVE_SHARE * idle_timeout)
            session, time_ms = payload.get("session", ""), payload.get("time_ms")
            token = self.lasting.token if self._fetches else None
            self._offset_s = None if time_ms is None else time_ms / 1000 - now
            beats = Beats(keepalive, self._ask_every, now, self._chance)
            sends = self._ids, self._outgoing, self.lasting
            self._connection = Connection(
                beats, now, *sends, token=token, time_ms=time_ms, chance=self._chance
            )
            self.state = State.ONLINE
            self.returns.online()
            return [Connected(session, idle_timeout, keepalive, time_ms, self.returns.logins > 1)]
        if packet.kind == Kind.ERROR:
            return self._refused(Loss.told(payload), None, now)
        return []

    def _take_goodbye(self, payload: Mapping[str, Any], now: float) -> Caused:
        loss, comes_back = Loss.told(payload), payload["reconnect"]
        push = Goodbye(payload["code"], loss.reason, comes_back, loss.retry_after, loss.message)
        if self.state is State.LOGGING_OUT:
            return [push, *self._end(None)]
        if self._connection is None:
            return [push, *self._refused(loss, comes_back, now)]
        if not comes_back:
            return [push, *self._end(_ended(push.code, push.reason, push.message))]
        return [push, *self._lose(loss, now)]

    def _live(self, connection: Connection, now: float) -> Caused:
        caused = connection.tick(now)
        if now >= connection.beats.dead_at:
            return caused + self._lose(Loss("dead_server", "the server did not answer a beat in time"), now)
        self.beats += connection.beat(now, self._chance)
        return caused

    def _lose(self, loss: Loss, now: float) -> Caused:
        """The connection is no more, or could not be had."""
        online_s = now - self._connection.since if self._connection else 0.0
        verdict = self.returns.lost(loss, online_s)
        return self._end(None) if self.state is State.LOGGING_OUT else self._leave(loss, verdict, now)

    def _refused(self, loss: Loss, reconnect: bool | None, now: float) -> Caused:
        """The login was refused."""
        return self._leave(loss, self.returns.refused(loss, reconnect), now)

    def _leave(self, loss: Loss, verdict: float | PresenceError, now: float) -> Caused:
        """Come back after so many seconds, or end."""
        if isinstance(verdict, PresenceError):
            return self._end(verdict)
        caused = self._drop(ConnectionLost(loss.message or loss.reason))
        self.state, self._due = State.WAITING, now + verdict
        return [*caused, Disconnected(loss.reason, loss.message, verdict, loss.code)]

    def _end(self, error: PresenceError | None) -> Caused:
        lost = self.state is State.LOGGING_OUT
        self.state, self.error = State.ENDED, error
        return self._drop(ConnectionLost("the connection broke during the logout") if lost else self.over())

    def _drop(self, error: PresenceError) -> Caused:
        connection, self._connection = self._connection, None
        self._outgoing.clear()
        return connection.fail(error) if connection else []


def _ended(code: int, reason: str, message: str) -> Ended:
    return ENDED.get(code, Ended)(code, reason, message)
