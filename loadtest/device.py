"""One device: a connection, a session, beats that are sent when they are due, and its misadventures.

Everything that it does is told to the judge; nothing here decides what the server should make of it.
"""

import itertools
import random
import time
from typing import Any

import protocol
from loadtest.connection import ASKING_BEAT, ASKING_ID, Connection, ConnectionEnded
from loadtest.facts import Sent, Session
from loadtest.run import Run
from protocol import Code, Kind, Packet

ANSWER_TIMEOUT_S = 10.0  # for a login or a logout: a server at its limits refuses, it does not delay
ASKED_SHARE = 3  # every third beat asks for an answer, as the specification advises
LATE_BEAT_S = 0.25  # a beat that is sent later than this tells that the load generator is at its limits
BACK_OFF_MAX_S = 60.0  # as the specification says under "Coming back"
_EXPECTED = (Code.UNSUPPORTED, Code.RECIPIENT_OFFLINE, Code.RECIPIENT_DISCONNECTED, Code.RATE_LIMITED)
ANSWERED = "keepalive, answered"
LATE = "(load generator late with a beat)"


class Refused(Exception):
    """The server refused a login or said goodbye.

    Attributes:
        code, reason: the server's.
        retry_after: seconds.
    """

    def __init__(self, payload: Any) -> None:
        self.code = int(payload["code"])
        self.reason = str(payload["reason"])
        self.retry_after = float(payload.get("retry_after", 0.0))
        super().__init__(self.reason)


class Device:
    """A device that logs in and beats for as long as it is told to.

    Methods that use the connection raise `ConnectionEnded` and `ProtocolError`, and `Refused` after a
    goodbye; call `dropped` then.
    """

    def __init__(self, run: Run) -> None:
        self.uid = next(run.uids)
        self._run = run
        self._judge = run.judge
        self._ids = itertools.count(ASKING_ID + 1)
        self._beats = random.randrange(ASKED_SHARE)
        self._connection: Connection | None = None
        self._session: Session | None = None
        self._asked: dict[int, tuple[str, float]] = {}
        self._beat_s = 0.0
        self._beat_due = 0.0
        self._attempts = 0

    @property
    def connection(self) -> Connection:
        """The open connection."""
        assert self._connection is not None
        return self._connection

    @property
    def session(self) -> Session:
        """The present or last session."""
        assert self._session is not None
        return self._session

    @property
    def is_online(self) -> bool:
        """Whether there is a connection that is logged in."""
        return self._connection is not None

    def log_in(self) -> None:
        """Open a connection and log in; one attempt, in place of a connection that may still be open.

        Raises:
            OSError: no connection came about.
        """
        self._attempts += 1
        connection = Connection(self._run.address, next(self._run.sources), self._run.waiting)
        wish = self._run.options.idle_timeout_wish or None
        try:
            sent = connection.send(protocol.encode(protocol.login(self.uid, id=0, idle_timeout=wish)))
        except ConnectionEnded:
            connection.close()
            raise
        session = self._judge.logged_in(self.uid, sent)
        try:
            answer = _granted(connection)
        except BaseException:
            self._judge.closed(session, connection.close())
            raise
        self._entered(connection, session, answer)

    def _entered(self, connection: Connection, session: Session, answer: Packet) -> None:
        told, now = answer.payload, time.monotonic()
        self._judge.answered(session, now, told["session"], told["idle_timeout"], told["time_ms"])
        self._run.tally.took("login", now - session.login.begun)
        if self._connection is not None:
            self._connection.close()  # the server has let it go already, or does so now
        if self._session is None:
            self._run.peers.append(self.uid)
        self._connection, self._session = connection, session
        self._asked.clear()
        self._attempts = 0
        self._beat_s = told["keepalive"]
        self._beat_due = now + random.uniform(0, self._beat_s)

    def back_off_s(self, at_least: float = 0.0) -> float:
        """Return how long to wait before the next attempt: full jitter over a bound that doubles."""
        return max(at_least, random.uniform(0, min(BACK_OFF_MAX_S, 2.0**self._attempts)))

    def live(self, until: float, *, beating: bool = True) -> None:
        """Take what the server sends, and beat when it is due, until a moment in monotonic seconds."""
        while (now := time.monotonic()) < until:
            if beating and now >= self._beat_due:
                self._beat(now)
                continue
            packet = self.connection.receive(min(until, self._beat_due) if beating else until)
            if packet is not None:
                self._take(packet)

    def _beat(self, now: float) -> None:
        if now - self._beat_due > LATE_BEAT_S:
            self._run.tally.took(LATE, now - self._beat_due)
        self._beats += 1
        if self._beats % ASKED_SHARE == 0:
            if ASKING_ID in self._asked:
                self._run.report(ANSWERED, None, failure="not answered until the next was asked")
            self._asked[ASKING_ID] = ANSWERED, self._tell(ASKING_BEAT).begun
        else:
            self._tell(protocol.KEEPALIVE)
            self._run.tally.count("keepalive")
        # By when it was due, not by when it was sent: a slow server must not slow its load down.
        self._beat_due = max(now, self._beat_due + self._beat_s * random.uniform(0.8, 1.0))

    def _tell(self, frame: bytes) -> Sent:
        sent = self.connection.send(frame)
        self._judge.sent(self.session, sent)
        return sent

    def _ask(self, name: str, packet: Packet) -> Sent:
        sent = self._tell(protocol.encode(packet))
        assert packet.id is not None
        self._asked[packet.id] = name, sent.begun
        return sent

    def _take(self, packet: Packet) -> None:
        if packet.kind == Kind.GOODBYE:
            raise Refused(packet.payload)
        if packet.id not in self._asked:
            return
        name, begun = self._asked.pop(packet.id)
        seconds = time.monotonic() - begun
        if packet.kind == Kind.OK:
            self._run.tally.took(name, seconds)
        elif packet.payload["code"] in _EXPECTED:
            self._run.report(f"{name}, answered {packet.payload['reason']}", seconds)
        else:
            self._run.report(name, seconds, failure=packet.payload["reason"])

    def message(self) -> None:
        """Send a message to a device that is or was online."""
        recipient = random.choice(self._run.peers)
        self._ask("message", protocol.message(recipient, "hello", id=next(self._ids)))

    def fall_silent(self, until: float) -> None:
        """Send nothing more, with the connection open, until then; what the server says is read."""
        self._judge.silent(self.session)
        self.live(until, beating=False)
        self._beat_due = until

    def close(self, *, reset: bool = False) -> None:
        """Close the connection without a word."""
        closed = self.connection.close(reset=reset)
        self._connection = None
        self._judge.closed(self.session, closed)

    def log_out(self) -> None:
        """Log out, and wait for the server's answer and for the end of the connection."""
        number = next(self._ids)
        sent = self._ask("logout", protocol.logout(id=number))
        self._judge.logs_out(self.session, sent)
        until = sent.begun + ANSWER_TIMEOUT_S
        while number in self._asked:
            packet = self.connection.receive(until)
            if packet is None:
                raise ConnectionEnded("the logout was not answered")
            self._take(packet)
        self._judge.logged_out(self.session)
        self.connection.close()
        self._connection = None

    def dropped(self, by: Exception) -> None:
        """The connection ended, by a goodbye or without; says so in the report."""
        if self._connection is None:
            return
        closed = self._connection.close()
        self._connection = None
        if isinstance(by, Refused):
            self._run.report(f"goodbye {by.reason}", None)
            if by.code == Code.IDLE_TIMEOUT:
                self._judge.closed(self.session, closed)
                return
        else:
            self._run.report("connection lost", None, failure=str(by))
        self._judge.lost(self.session, closed.done)


def _granted(connection: Connection) -> Packet:
    """Return the ok to a login."""
    answer = connection.receive(time.monotonic() + ANSWER_TIMEOUT_S)
    if answer is None:
        raise ConnectionEnded("the login was not answered")
    if answer.kind != Kind.OK:
        raise Refused(answer.payload)
    return answer
