"""The client's protocol as a state machine: no I/O, and time and randomness are arguments.

A shell moves the bytes. It connects while the state is CONNECTING, reads and writes while `connected` is
true, closes the connection as soon as it is false, and calls `tick` at `deadline`. It must read all received
bytes before that call, or an answer that arrived in time would count as missing. Each input returns its
effects, in order; `take_outgoing` returns the bytes to send, and the shell calls `written` after it has sent
them. While `wants_token` is true, the shell asks the program for a token, one call at a time, and passes the
result to `token_fetched`.

    FETCHING_TOKEN → CONNECTING → LOGGING_IN → ONLINE → LOGGING_OUT → ENDED
          ↑ ↓           ↑ ↓           ↓          ↓
          WAITING ←─────┴─┴───────────┴──────────┘        and from any state to ENDED

    state            input                                             next state
    FETCHING_TOKEN   a token                                           CONNECTING
                     an exception, a stale token, a time-out           WAITING *
    CONNECTING       `established`                                     LOGGING_IN
                     `disconnected`, a time-out                        WAITING *
    LOGGING_IN       ok                                                ONLINE
                     error, goodbye                                    WAITING * or ENDED: `ReconnectPolicy`
                     `disconnected`, a time-out, invalid bytes         WAITING *
    ONLINE           `log_out`                                         LOGGING_OUT
                     goodbye to return, `disconnected`, no answer      WAITING
                       to a keepalive, invalid bytes
                     goodbye for good, `disconnected` after an error   ENDED
    LOGGING_OUT      its answer, goodbye, `disconnected`, a time-out   ENDED
    WAITING          the end of the pause                              FETCHING_TOKEN or CONNECTING
    any              `close`, `log_out`                                ENDED

    * ENDED, if the first attempt must succeed and has failed.
"""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from presence import protocol
from presence.client.argument_checks import whole
from presence.client.connection import ClientConnection
from presence.client.errors import ENDED, ConnectionLost, Ended, NotConnected, PresenceError
from presence.client.inbox import Inbox
from presence.client.kept_state import PersistentState
from presence.client.lifecycle import CONNECTED, State, Statistics
from presence.client.login_token import TOKEN_TIMEOUT_S, LoginToken
from presence.client.pending import Effects, RequestResult
from presence.client.pushes import Connected, Disconnected, Goodbye
from presence.client.reconnect import Chance, Loss, ReconnectPolicy
from presence.client.session import ASK_EVERY, KEEPALIVE_SHARE, Keepalives
from presence.client.tokens import ServerClock
from presence.protocol import Code, Kind, Packet, ProtocolError

CONNECT_TIMEOUT_S = 10.0  # name, TCP and TLS; a SYN that got lost is repeated after 1, 3 and 7 s
LOGIN_TIMEOUT_S = 6.0  # the server refuses a login left unread for 5 s, so waiting longer is useless
LOGOUT_TIMEOUT_S = 2.0
DEFAULT_IDLE_TIMEOUT_S = 30.0  # where the server names none
_LOGIN_ID = 1
_LONGEST_ID = 2**64 - 1


class ClientMachine:
    """One client, from its first attempt to its end.

    Args:
        login: the login packet, without an id.
        now: monotonic seconds; every `now` is of the same clock.
        reconnect_policy: decides what follows a loss; None: the default one.
        fetches: whether the program is asked for a token before each login, and before a token expires.
        ask_every: see `Keepalives`.
        watch_devices: see `presence.client.connect`.
        chance: uniform in [0, 1).

    Attributes:
        persistent_state: what the client keeps over all connections: its login and the users it watches.
        error: why the client has ended; None before, and after its own logout or close.

    Raises:
        protocol.EncodeError: the login breaks a rule of the protocol.
        ValueError: `ask_every` is below 1.
    """

    def __init__(
        self,
        login: Packet,
        now: float,
        *,
        reconnect_policy: ReconnectPolicy | None = None,
        fetches: bool = False,
        ask_every: int = ASK_EVERY,
        watch_devices: bool = False,
        chance: Chance = random.random,
    ) -> None:
        self.persistent_state = PersistentState(
            login._replace(id=_LOGIN_ID), token_comes_later=fetches, watch_devices=watch_devices
        )
        self._ask_every = whole("ask_every", ask_every)
        self._chance = chance
        self._decoder = protocol.Decoder()
        self._ids = itertools.count(_LOGIN_ID + 1)
        self._logout_id: int | None = None
        self._outgoing = bytearray()
        self._connection: ClientConnection | None = None
        self._clock = ServerClock()
        self.login_token = LoginToken(self.persistent_state, self._clock, fetches, chance)
        self.reconnect_policy = reconnect_policy or ReconnectPolicy(chance=chance)
        self.error: PresenceError | None = None
        self.keepalives_sent = 0
        self.begin(now)

    # Queries of the shell

    @property
    def connected(self) -> bool:
        """Whether the shell should hold a connection."""
        return self.state in CONNECTED

    @property
    def wants_token(self) -> bool:
        """Whether to ask the program for a token now, unless a call is already running."""
        return self.login_token.wanted and self.state in (State.FETCHING_TOKEN, State.ONLINE)

    @property
    def deadline(self) -> float:
        """When to call `tick`; infinite after the end."""
        if self.state is State.ONLINE and self._connection is not None:
            return self._connection.deadline
        if self.state is State.LOGGING_OUT and self._connection is not None:
            return min(self._deadline, self._connection.requests_due_at)
        return math.inf if self.state is State.ENDED else self._deadline

    def statistics(self, inbox: Inbox) -> Statistics:
        round_trip_s = self._connection.keepalives.round_trip_s if self._connection else None
        pushes = len(inbox), inbox.superseded, inbox.dropped
        policy = self.reconnect_policy
        return Statistics(policy.logins, policy.losses, self.keepalives_sent, round_trip_s, *pushes)

    def server_time_s(self, now: float) -> float | None:
        """Return the Unix seconds by the clock of the last server; None before the first login."""
        return self._clock.time_s(now)

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def end_error(self) -> PresenceError:
        """Return the exception for requests to an ended client."""
        return self.error or Ended(Code.LOGOUT, Code.LOGOUT.reason, "this client was logged out or closed")

    def take_outgoing(self) -> bytes:
        """Return the bytes to send on the current connection, and clear them."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # Inputs of the shell

    def begin(self, now: float) -> None:
        """Begin the first attempt to come online now, and not when the machine was made."""
        self.state, self._deadline = self._begin_attempt(now)

    def written(self, now: float) -> None:
        """The bytes taken so far have been written to the connection."""
        if self._connection is not None and not self._outgoing:
            self._connection.keepalives.note_written(now)

    def token_fetched(self, token: str | Exception, now: float) -> Effects:
        """The program returned a token, or raised; ignored if no token is wanted any more."""
        if not self.wants_token:
            return []
        lacking = self.login_token.offer(token, now)
        if self._connection is not None:
            self._connection.renew_token(lacking, now)
        elif lacking is not None:
            return self._connection_lost(lacking, now)
        else:
            self.state, self._deadline = State.CONNECTING, now + CONNECT_TIMEOUT_S
        return []

    def established(self, now: float) -> None:
        """The connection is established: log in, unless the client has ended meanwhile."""
        if self.state is not State.CONNECTING:
            return
        self._decoder = protocol.Decoder()
        time_s = self._clock.time_s(now)
        time_ms = None if time_s is None else time_s * 1000
        self._outgoing[:] = protocol.encode(self.persistent_state.login_packet(time_ms))
        self.login_token.login_sent()
        self.state, self._deadline = State.LOGGING_IN, now + LOGIN_TIMEOUT_S

    def received(self, data: bytes | bytearray, now: float) -> Effects:
        """Bytes were received; those after the end of the connection are dropped."""
        effects: Effects = []
        if self._connection is not None:
            self._connection.keepalives.note_received(now)
        try:
            self._decoder.feed(data)
            while self.connected and (packet := self._decoder.next()) is not None:
                effects += self._handle_packet(packet, now)
            if self._connection is not None:
                self._connection.send_confirmations()
        except ProtocolError as error:
            effects += self._connection_lost(Loss("bad_server", error.message), now)
        return effects

    def disconnected(self, message: str, now: float) -> Effects:
        """The connection ended or could not be made; `message` says why, for people."""
        if self.state is State.CONNECTING:
            return self._connection_lost(Loss("unreachable", message), now)
        if not self.connected:
            return []
        if self._connection is not None and self._connection.refusal is not None:
            return self._end(_ended_error(*self._connection.refusal))
        return self._connection_lost(Loss("closed", message), now)

    def tick(self, now: float) -> Effects:
        """Act on time-outs; does nothing before the deadline."""
        if self.state is State.ONLINE and self._connection is not None:
            return self._tick_online(self._connection, now)
        effects: Effects = []
        if self.state is State.LOGGING_OUT and self._connection is not None:
            effects = self._connection.expire_requests(now)
        if now < self._deadline:
            return effects
        if self.state is State.WAITING:
            self.state, self._deadline = self._begin_attempt(now)
        elif self.state is State.FETCHING_TOKEN:
            effects = self.token_fetched(TimeoutError(f"none came within {TOKEN_TIMEOUT_S:.0f} s"), now)
        elif self.state is State.CONNECTING:
            message = f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
            effects = self._connection_lost(Loss("unreachable", message), now)
        elif self.state is State.LOGGING_IN:
            message = f"no answer to the login within {LOGIN_TIMEOUT_S:.0f} s"
            effects = self._connection_lost(Loss("login_timeout", message), now)
        elif self.state is State.LOGGING_OUT:
            effects += self._end(None)
        return effects

    def request(self, packet: Packet, timeout_s: float, now: float, *, retries: bool = False) -> int:
        """Send a request and return its id; one `RequestResult` follows. See `ClientSession.request`.

        Raises:
            NotConnected, Ended: not logged in now, or ended for good.
            protocol.EncodeError: the packet breaks a rule of the protocol.
        """
        id = self.check_online().request(packet, timeout_s, now, retries=retries)
        if packet.kind == Kind.UPDATE:
            self.persistent_state.supersede(id, packet.payload)
        return id

    def check_online(self) -> ClientConnection:
        """Return the connection for requests; raises `NotConnected` or `Ended`, if there is none."""
        if self.state is State.ENDED:
            raise self.end_error().with_traceback(None)
        if self.state is not State.ONLINE or self._connection is None:
            raise NotConnected(f"{self.state.value}: nothing was sent")
        return self._connection

    def log_out(self, reason: str | None, now: float) -> int:
        """Send a logout: the user is offline as soon as the server reads it. A `RequestResult` follows.

        Raises `Ended`, `protocol.EncodeError` for a reason unknown to the protocol, or `NotConnected`: then
        the client has ended all the same, and a session of an earlier connection ends by itself.
        """
        try:
            self._logout_id = self.request(protocol.logout(reason), LOGOUT_TIMEOUT_S, now)
        except NotConnected:
            if self.state is not State.LOGGING_OUT:
                self._end(None)
            raise
        if self._connection is not None:
            self._connection.is_leaving = True
        self.state, self._deadline = State.LOGGING_OUT, now + LOGOUT_TIMEOUT_S
        return self._logout_id

    def close(self, failure: BaseException | None = None) -> Effects:
        """End without a logout: the user is offline after the server's grace for lost connections.

        `failure`: the exception because of which the shell cannot go on; the cause of the error of requests.
        """
        if self.state is State.ENDED:
            return []
        if failure is None:
            return self._end(None)
        error = Ended(Code.CLOSED, Code.CLOSED.reason, f"after {type(failure).__name__}: {failure}")
        error.__cause__ = failure
        return self._end(error)

    def watch_nowait(self, uids: list[str], now: float) -> None:
        """Watch users from now on, connected or not; their states arrive as changes.

        Raises `Ended`, or `protocol.EncodeError` for invalid or too many uids.
        """
        if self.state is State.ENDED:
            raise self.end_error().with_traceback(None)
        longest = self.persistent_state.watch(uids)._replace(id=_LONGEST_ID)
        protocol.encode(longest, protocol.FRAME_LIMIT_BYTES)
        new = self.persistent_state.watches.add(uids)
        if new and self._connection is not None and self.state is State.ONLINE:
            self._connection.watch(new, now)

    def watch_roster_nowait(self, now: float) -> None:
        """Watch the users of the roster from now on, connected or not; raises `Ended`."""
        if self.state is State.ENDED:
            raise self.end_error().with_traceback(None)
        is_new = self.persistent_state.watches.follow_roster()
        if is_new and self._connection is not None and self.state is State.ONLINE:
            self._connection.watch_roster(now)

    def unwatch(self, uids: list[str] | None, timeout_s: float, now: float) -> int | None:
        """Stop watching some users, or all, the roster and all rooms; return the request's id.

        None: the client is not connected.

        Raises `Ended`, or `protocol.EncodeError` for invalid uids.
        """
        try:
            return self.request(protocol.unwatch(uids), timeout_s, now)
        except NotConnected:
            protocol.encode(protocol.unwatch(uids), protocol.FRAME_LIMIT_BYTES)
            self.persistent_state.unwatch(uids)
            return None

    def unwatch_rooms(self, rooms: list[str] | None, timeout_s: float, now: float) -> int | None:
        """Stop watching some rooms, or all; return the id of the last request, or None if not connected.

        Raises `Ended`, or `protocol.EncodeError` for invalid rooms.
        """
        watched = self.persistent_state.watched_rooms
        id = None
        for batch in ([*watched.batches()] or [[]]) if rooms is None else [rooms]:
            try:
                id = self.request(protocol.unwatch(rooms=batch), timeout_s, now)
            except NotConnected:
                protocol.encode(protocol.unwatch(rooms=batch), protocol.FRAME_LIMIT_BYTES)
                watched.remove(batch)
        return id

    def unwatch_roster(self, timeout_s: float, now: float) -> int | None:
        """Stop watching the roster; return the request's id, or None if not connected. Raises `Ended`."""
        try:
            return self.request(protocol.unwatch([], roster=True), timeout_s, now)
        except NotConnected:
            self.persistent_state.watches.unwatch_roster()
            return None

    def abandon_request(self, id: int) -> Effects:
        """Stop waiting for an answer; a watch is undone."""
        return [] if self._connection is None else self._connection.abandon_request(id)

    # Transitions

    def _begin_attempt(self, now: float) -> tuple[State, float]:
        """Return the first state of an attempt to come online, and its deadline."""
        if self.login_token.begin_attempt(now):
            return State.FETCHING_TOKEN, now + TOKEN_TIMEOUT_S
        return State.CONNECTING, now + CONNECT_TIMEOUT_S

    def _handle_packet(self, packet: Packet, now: float) -> Effects:
        if packet.kind == Kind.GOODBYE:
            return self._handle_goodbye(packet.payload, now)
        if packet.kind == Kind.OK and (self._connection is None or "joined" in packet.payload):
            self.persistent_state.joined = packet.payload.get("joined")
        if self._connection is None:
            return self._handle_login_answer(packet, now)
        effects = self._connection.handle_packet(packet, now)
        is_logged_out = any(
            isinstance(each, RequestResult) and each.id == self._logout_id for each in effects
        )
        return effects + self._end(None) if is_logged_out else effects

    def _handle_login_answer(self, packet: Packet, now: float) -> Effects:
        payload = packet.payload
        if packet.kind == Kind.OK and packet.id == _LOGIN_ID:
            idle_timeout = payload.get("idle_timeout", DEFAULT_IDLE_TIMEOUT_S)
            keepalive = payload.get("keepalive", KEEPALIVE_SHARE * idle_timeout)
            session, time_ms = payload.get("session", ""), payload.get("time_ms")
            self._clock.set(time_ms, now)
            self.login_token.login_granted(now)
            keepalives = Keepalives(keepalive, self._ask_every, now, self._chance)
            sends = self._ids, self._outgoing, self.persistent_state
            token, chance = self.login_token, self._chance
            self._connection = ClientConnection(
                keepalives, now, *sends, login_token=token, time_ms=time_ms, chance=chance
            )
            self.state = State.ONLINE
            self.reconnect_policy.login_granted()
            return [Connected(session, idle_timeout, keepalive, time_ms, self.reconnect_policy.logins > 1)]
        if packet.kind == Kind.ERROR:
            return self._login_refused(Loss.from_payload(payload), None, now)
        return []

    def _handle_goodbye(self, payload: Mapping[str, Any], now: float) -> Effects:
        loss, comes_back = Loss.from_payload(payload), payload["reconnect"]
        push = Goodbye(payload["code"], loss.reason, comes_back, loss.retry_after, loss.message)
        if self.state is State.LOGGING_OUT:
            return [push, *self._end(None)]
        if self._connection is None:
            return [push, *self._login_refused(loss, comes_back, now)]
        if not comes_back:
            return [push, *self._end(_ended_error(push.code, push.reason, push.message))]
        return [push, *self._connection_lost(loss, now)]

    def _tick_online(self, connection: ClientConnection, now: float) -> Effects:
        effects = connection.tick(now)
        if connection.keepalives.is_dead(now):
            loss = Loss("dead_server", "the server did not answer a keepalive in time")
            return effects + self._connection_lost(loss, now)
        self.keepalives_sent += connection.send_keepalive(now, self._chance)
        return effects

    def _connection_lost(self, loss: Loss, now: float) -> Effects:
        """The connection was lost or could not be made."""
        online_s = now - self._connection.online_since if self._connection else 0.0
        outcome = self.reconnect_policy.connection_lost(loss, online_s)
        if self.state is State.LOGGING_OUT:
            return self._end(None)
        return self._reconnect_or_end(loss, outcome, now)

    def _login_refused(self, loss: Loss, reconnect: bool | None, now: float) -> Effects:
        """Reconnect later, or end, after a refused login."""
        if loss.code == Code.AUTH_FAILED and self.login_token.login_refused(loss.failure):
            return self._reconnect_or_end(loss, self.reconnect_policy.token_refused(loss), now)
        return self._reconnect_or_end(loss, self.reconnect_policy.login_refused(loss, reconnect), now)

    def _reconnect_or_end(self, loss: Loss, outcome: float | PresenceError, now: float) -> Effects:
        """Wait `outcome` seconds before the next attempt, or end with that error."""
        if isinstance(outcome, PresenceError):
            return self._end(outcome)
        effects = self._drop_connection(ConnectionLost(loss.message or loss.reason))
        self.state, self._deadline = State.WAITING, now + outcome
        return [*effects, Disconnected(loss.reason, loss.message, outcome, loss.code)]

    def _end(self, error: PresenceError | None) -> Effects:
        lost = self.state is State.LOGGING_OUT
        self.state, self.error = State.ENDED, error
        reason = ConnectionLost("the connection broke during the logout") if lost else self.end_error()
        return self._drop_connection(reason)

    def _drop_connection(self, error: PresenceError) -> Effects:
        connection, self._connection = self._connection, None
        self.login_token.connection_lost()
        self._outgoing.clear()
        return connection.fail_requests(error) if connection else []


def _ended_error(code: int, reason: str, message: str) -> Ended:
    return ENDED.get(code, Ended)(code, reason, message)
