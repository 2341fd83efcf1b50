"""What a client sends when, and what an answer means: no I/O, and time and chance are arguments.

A shell moves the bytes. It connects while the state is CONNECTING, reads and writes while `connected`,
closes the connection as soon as it no longer is, and calls `tick` when `deadline` has come (after it
has read what lies there: an answer that came in time must not be taken for one that did not come).
Each input returns what it caused, in order; `take_outgoing` returns what is to be sent.

    CONNECTING → LOGGING_IN → ONLINE → LOGGING_OUT → ENDED
         ↑ ↓          ↓          ↓
         WAITING ←────┴──────────┘        and from any state to ENDED
"""

import itertools
import math
import random
from collections.abc import Mapping
from enum import Enum
from typing import Any

import protocol
from presence.client.errors import (
    ConnectionLost,
    Ended,
    LoginRefused,
    Offline,
    PresenceError,
    Unreachable,
    ended,
)
from presence.client.lasting import Lasting
from presence.client.pacing import ASK_EVERY, Backoff, Beats, Chance
from presence.client.pushes import Connected, Disconnected, Goodbye
from presence.client.rewatching import Rewatching
from presence.client.session import Answer, Caused, Session
from protocol import Code, Kind, Packet, ProtocolError

CONNECT_TIMEOUT_S = 10.0  # name, TCP and TLS; a SYN that got lost is repeated after 1, 3 and 7 s
LOGIN_TIMEOUT_S = 6.0  # a server refuses a login that lay unread for 5 s, so waiting longer is in vain
LOGOUT_TIMEOUT_S = 2.0
KEEPALIVE_SHARE = 0.4  # of the idle time-out, for a server that does not tell how often to beat
IDLE_TIMEOUT_DEFAULT_S = 30.0  # and for one that tells neither


class State(Enum):
    """Where a client stands."""

    CONNECTING = "connecting"
    LOGGING_IN = "logging in"
    ONLINE = "online"
    LOGGING_OUT = "logging out"
    WAITING = "waiting to return"
    ENDED = "ended"


_CONNECTED = frozenset({State.LOGGING_IN, State.ONLINE, State.LOGGING_OUT})
_LOGIN_ID = 1


class Machine:
    """One client, from its first attempt to its end.

    Args:
        login: what to log in with, without an id.
        now: monotonic seconds; every `now` is of the same clock.
        persistent: whether a first attempt that fails is repeated like any later one.
        ask_every: see `Beats`.
        chance: uniform in [0, 1).

    Attributes:
        lasting: what it keeps over all connections: the login, which may be changed, and whom it watches.
        state: where it stands.
        error: why it has ended; None while it has not, and after its own logout or close.
        logins: how often it came online.
        losses: how often a connection was lost, or could not be had.
        beats: how many it sent.

    Raises:
        protocol.EncodeError: the login breaks a rule of the protocol.
    """

    __slots__ = (
        *("_ask_every", "_backoff", "_chance", "_decoder", "_due", "_ids", "_logout_id"),
        *("_outgoing", "_persistent", "_rewatching", "_session", "beats", "error", "lasting", "logins"),
        *("losses", "state"),
    )

    def __init__(
        self,
        login: Packet,
        now: float,
        *,
        persistent: bool = True,
        ask_every: int = ASK_EVERY,
        chance: Chance = random.random,
    ) -> None:
        self.lasting = Lasting(login._replace(id=_LOGIN_ID))
        self._persistent = persistent
        self._ask_every = ask_every
        self._chance = chance
        self._backoff = Backoff()
        self._decoder = protocol.Decoder()
        self._due = now + CONNECT_TIMEOUT_S  # of the state; ONLINE has the session's times instead
        self._ids = itertools.count(_LOGIN_ID + 1)
        self._logout_id: int | None = None
        self._outgoing = bytearray()
        self._session: Session | None = None
        self._rewatching: Rewatching | None = None
        self.state = State.CONNECTING
        self.error: PresenceError | None = None
        self.logins = self.losses = self.beats = 0

    # What the shell asks

    @property
    def connected(self) -> bool:
        """Whether the shell should hold a connection."""
        return self.state in _CONNECTED

    @property
    def deadline(self) -> float:
        """When `tick` is to be called; infinite after the end."""
        if self.state is State.ONLINE and self._session is not None:
            again = self._rewatching.due if self._rewatching else math.inf
            return min(self._session.deadline, again)
        return math.inf if self.state is State.ENDED else self._due

    @property
    def round_trip_s(self) -> float | None:
        """Seconds from the last beat that asked to its answer, on this connection; None before one."""
        return self._session.beats.round_trip_s if self._session else None

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

    def established(self, now: float) -> None:
        """The connection stands: log in."""
        self._decoder = protocol.Decoder()
        self._outgoing[:] = protocol.encode(self.lasting.login)
        self.state, self._due = State.LOGGING_IN, now + LOGIN_TIMEOUT_S

    def received(self, data: bytes | bytearray, now: float) -> Caused:
        """Bytes were read; what follows the end of a connection is dropped."""
        caused: Caused = []
        if self._session is not None:
            self._session.beats.heard(now)
        try:
            self._decoder.feed(data)
            while self.connected and (packet := self._decoder.next()) is not None:
                caused += self._take(packet, now)
        except ProtocolError as error:
            caused += self._lose("bad_server", error.message, now)
        return caused

    def disconnected(self, message: str, now: float) -> Caused:
        """The connection ended, or could not be made; `message` says why, for people."""
        if self.state is State.CONNECTING:
            return self._lose("unreachable", message, now)
        if not self.connected:
            return []
        if self._session is not None and self._session.refusal is not None:
            return self._end(ended(*self._session.refusal))
        return self._lose("closed", message, now)

    def tick(self, now: float) -> Caused:
        """Time has passed; harmless before the deadline."""
        if self.state is State.ONLINE and self._session is not None:
            return self._live(self._session, now)
        if now < self._due:
            return []
        if self.state is State.WAITING:
            self.state, self._due = State.CONNECTING, now + CONNECT_TIMEOUT_S
        elif self.state is State.CONNECTING:
            return self._lose("unreachable", f"no connection within {CONNECT_TIMEOUT_S:.0f} s", now)
        elif self.state is State.LOGGING_IN:
            return self._lose("login_timeout", f"no answer to the login within {LOGIN_TIMEOUT_S:.0f} s", now)
        elif self.state is State.LOGGING_OUT and self._session is not None:
            return [*self._settled(self._session.expire(now), now), *self._end(None)]
        return []

    def request(self, packet: Packet, timeout_s: float, now: float) -> int:
        """Send a request; its `Answer` comes later, exactly once.

        Returns:
            The id that the answer will carry.

        Raises:
            Offline: not logged in now.
            Ended: over for good.
            protocol.EncodeError: the packet breaks a rule of the protocol.
        """
        if self.state is State.ENDED:
            raise self.over().with_traceback(None)
        if self.state is not State.ONLINE or self._session is None:
            raise Offline(f"{self.state.value}: nothing was sent")
        return self._session.request(packet, timeout_s, now)

    def log_out(self, reason: str | None, now: float) -> int:
        """Send the logout: the user is offline as soon as the server reads it. Its `Answer` comes later.

        Raises:
            Offline: not logged in now. The client has ended all the same; if the server still holds a
                session of an earlier connection, that one ends by itself.
            Ended: over already.
            protocol.EncodeError: the reason is none that the protocol knows.
        """
        try:
            self._logout_id = self.request(protocol.logout(reason), LOGOUT_TIMEOUT_S, now)
        except Offline:
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

        Raises:
            Ended: over for good.
            protocol.EncodeError: what is given are no uids, or too many.
        """
        if self.state is State.ENDED:
            raise self.over().with_traceback(None)
        protocol.encode(protocol.watch(uids), protocol.FRAME_LIMIT_BYTES)
        new = self.lasting.watches.expect(uids)
        if new and self._rewatching is not None and self.state is State.ONLINE:
            self._rewatching.add(new, now)

    def unwatch(self, uids: list[str] | None, timeout_s: float, now: float) -> int | None:
        """Watch some no more, or nobody; None: no server has to be told, for there is no connection.

        Raises:
            Ended: over for good.
            protocol.EncodeError: what is given are no uids.
        """
        try:
            return self.request(protocol.unwatch(uids), timeout_s, now)
        except Offline:
            protocol.encode(protocol.unwatch(uids), protocol.FRAME_LIMIT_BYTES)
            self.lasting.watches.forget(uids)
            return None

    def give_up(self, id: int) -> None:
        """Nobody waits for the answer to this request any more; a watch is taken back."""
        if self._session is not None:
            self._session.give_up(id)

    # What follows

    def _take(self, packet: Packet, now: float) -> Caused:
        if packet.kind == Kind.GOODBYE:
            return self._take_goodbye(packet.payload, now)
        if self._session is None:
            return self._take_login_answer(packet, now)
        caused = self._settled(self._session.take(packet, now), now)
        if any(isinstance(each, Answer) and each.id == self._logout_id for each in caused):
            caused += self._end(None)
        return caused

    def _take_login_answer(self, packet: Packet, now: float) -> Caused:
        payload = packet.payload
        if packet.kind == Kind.OK and packet.id == _LOGIN_ID:
            idle_timeout = payload.get("idle_timeout", IDLE_TIMEOUT_DEFAULT_S)
            keepalive = payload.get("keepalive", KEEPALIVE_SHARE * idle_timeout)
            beats = Beats(keepalive, self._ask_every, now, self._chance)
            self._session = Session(beats, now, self._ids, self._outgoing, self.lasting)
            self._rewatching = Rewatching(self._session, self.lasting.watches, now, self._chance)
            self._rewatching.tick(now)
            self.state = State.ONLINE
            self.logins += 1
            again = self.logins > 1
            session, time_ms = payload.get("session", ""), payload.get("time_ms")
            return [Connected(session, idle_timeout, keepalive, time_ms, again)]
        if packet.kind == Kind.ERROR:
            return self._refused(payload, now)
        return []

    def _take_goodbye(self, payload: Mapping[str, Any], now: float) -> Caused:
        code, reason, comes_back = payload["code"], payload["reason"], payload["reconnect"]
        message, retry_after = payload.get("message", ""), payload.get("retry_after")
        push = Goodbye(code, reason, comes_back, retry_after, message)
        if self.state is State.LOGGING_OUT:
            return [push, *self._end(None)]
        if self._session is None:
            return [push, *self._refused(payload, now)]
        if not comes_back:
            return [push, *self._end(ended(code, reason, message))]
        return [push, *self._lose(reason, message, now, code, retry_after)]

    def _refused(self, payload: Mapping[str, Any], now: float) -> Caused:
        """A login was refused. Of a code that it does not know, a client tries again."""
        code, reason, message = payload["code"], payload["reason"], payload.get("message", "")
        comes_back = payload.get("reconnect", code not in list(Code) or Code(code).reconnect)
        retry_after = payload.get("retry_after")
        if not comes_back or not (self._persistent or self.logins):
            return self._end(LoginRefused(code, reason, message, retry_after))
        return self._lose(reason, message, now, code, retry_after)

    def _live(self, session: Session, now: float) -> Caused:
        caused = self._settled(session.expire(now), now)
        if self._rewatching is not None:
            self._rewatching.tick(now)
        if now >= session.beats.dead_at:
            return caused + self._lose("dead_server", "the server did not answer a beat in time", now)
        self.beats += session.beat(now, self._chance)
        return caused

    def _settled(self, caused: Caused, now: float) -> Caused:
        return self._rewatching.settle(caused, now) if self._rewatching else caused

    def _lose(
        self, reason: str, message: str, now: float, code: int | None = None, retry_after: float | None = None
    ) -> Caused:
        """The connection is no more; come back after a while."""
        self.losses += 1
        if self.state is State.LOGGING_OUT:
            return self._end(None)
        if not (self._persistent or self.logins):
            return self._end(Unreachable(message or reason))
        online_s = now - self._session.since if self._session else 0.0
        delay_s = self._backoff.next_s(self._chance, online_s, retry_after)
        caused = self._drop(ConnectionLost(message or reason))
        self.state, self._due = State.WAITING, now + delay_s
        return [*caused, Disconnected(reason, message, delay_s, code)]

    def _end(self, error: PresenceError | None) -> Caused:
        lost = self.state is State.LOGGING_OUT
        self.state, self.error = State.ENDED, error
        return self._drop(ConnectionLost("the connection broke during the logout") if lost else self.over())

    def _drop(self, error: PresenceError) -> Caused:
        session, self._session = self._session, None
        rewatching, self._rewatching = self._rewatching, None
        self._outgoing.clear()
        failed = session.fail(error) if session else []
        return rewatching.without_own(failed) if rewatching else failed
