"""Tells the judge what the clients of a swarm do, as a device does for itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loadtest.clients import Clients, Watcher
from loadtest.facts import Sent, Session
from loadtest.judge import Judge
from protocol import Code


class Witness(Watcher):
    """The watcher of one swarm.

    Args:
        judge: to be told.
        clients: of the swarm.
        took: is told a name and seconds.
        report: is told a name and what failed, or None.

    Attributes:
        keepalive_s: the beat interval that the server dictated last; 0 before any login.
    """

    def __init__(
        self,
        judge: Judge,
        clients: Clients,
        took: Callable[[str, float], None],
        report: Callable[[str, str | None], None],
    ) -> None:
        self.keepalive_s = 0.0
        self._judge = judge
        self._clients = clients
        self._took = took
        self._report = report
        self._sessions: list[Session | None] = [None] * len(clients)

    def login_sent(self, number: int, sent: Sent) -> None:
        """Begin a session."""
        self._sessions[number] = self._judge.logged_in(self._clients.uid(number), sent)

    def entered(self, number: int, at: float, told: Mapping[str, Any]) -> None:
        """The session lives."""
        session = self._session(number)
        self.keepalive_s = told["keepalive"]
        self._judge.answered(session, at, told["session"], told["idle_timeout"], told["time_ms"])
        self._took("login", at - session.login.begun)

    def beaten(self, numbers: Sequence[int]) -> None:
        """Take the moments of those that beat from the columns."""
        begun, done = self._clients.begun, self._clients.done
        for number in numbers:
            session = self._sessions[number]
            if session is not None and session.times[-2] != begun[number]:
                self._judge.sent(session, Sent(begun[number], done[number]))

    def answered(self, number: int, at: float) -> None:
        """Note how long the answer took."""
        self._took("keepalive, answered", at - self._clients.begun[number])

    def silent(self, numbers: Iterable[int]) -> None:
        """These send nothing more for now."""
        for number in numbers:
            session = self._sessions[number]
            if session is not None and session.answered_at is not None:
                self._judge.silent(session)

    def left(self, number: int, sent: Sent) -> None:
        """The client closed its connection."""
        session, self._sessions[number] = self._sessions[number], None
        if session is not None:
            self._judge.closed(session, sent)

    def ended(self, number: int, at: float, payload: Mapping[str, Any] | None) -> None:
        """The session or the attempt at one is over; only a goodbye for silence ends it with an event."""
        session, self._sessions[number] = self._sessions[number], None
        if session is None or session.answered_at is None:
            if session is not None:
                self._judge.closed(session, Sent(at, at))
            if payload:
                self._refused(payload)
        elif payload:
            self._report(f"goodbye {payload['reason']}", None)
            if payload["code"] == Code.IDLE_TIMEOUT:
                self._judge.closed(session, Sent(at, at))
            else:
                self._judge.lost(session, at)
        else:
            self._report("connection lost", "closed by the server")
            self._judge.lost(session, at)

    def _refused(self, payload: Mapping[str, Any]) -> None:
        reason = str(payload["reason"])
        self._report(f"login refused, {reason}", None if payload["code"] == Code.BUSY else reason)

    def _session(self, number: int) -> Session:
        session = self._sessions[number]
        assert session is not None
        return session
