"""Whom the users of connections may query, watch and message, where tokens say so.

A user always sees itself. The claim `see` of its token adds others, and so does a pass: a signed statement
that a user may see some others until a time, which a client gives with a watch. Both are held for the
connection: a new login brings its own token, and gives its passes again. A check costs far more than a watch,
so each user gets so many checks, whatever the number of connections and their ends.

Costs: `allows` O(1 + passes); 200 bytes and its texts for each connection, and for each pass. A pass of 4 KiB
may take 75 KB when it is read, so those of all connections have one bound.
"""

from collections.abc import Callable, Iterable
from sys import getsizeof
from typing import Final, NamedTuple

from presence.common.rate_limit import KeyedRateLimiter, spread_over
from presence.core.authenticator import NO_PATTERNS, Authenticator, Granted, NamePatterns, Refusal
from presence.core.deadline_wheel import DeadlineWheel
from presence.core.registry import Session
from presence.protocol import Code

MAX_PASSES: Final = 16  # of a connection
MAX_PASS_BYTES: Final = 60_000_000  # memory of those of all connections: 30,000 passes for 20 users each
PASS_BYTES: Final = 500  # memory of a pass beside its texts and their table
PASS_CHECKS_BURST: Final = 8 * MAX_PASSES  # of a user: eight devices that return together give all they have
PASS_CHECKS_PER_S: Final = 4.0  # of a user in the long run: some milliseconds with the costliest algorithm
MAX_TIDIED_PER_LOSS: Final = 2  # buckets that are examined when a connection is lost: no table stays full
FULL_RETRY_S: Final = 10.0  # upper bound of the retry time when there is no room
NOT_ALLOWED: Final = "this user may not be seen"


class Pass(NamedTuple):
    """A valid pass of one connection.

    Attributes:
        expires_at: monotonic seconds.
        size_bytes: approximate memory.
    """

    text: str
    sight: NamePatterns
    expires_at: float
    size_bytes: int


def _bytes_of(text: str, sight: NamePatterns) -> int:
    names = sum(map(getsizeof, sight.names)) + sum(map(getsizeof, sight.prefixes))
    return PASS_BYTES + getsizeof(text) + getsizeof(sight.names) + getsizeof(sight.prefixes) + names


class Visibility:
    """The sights of all connections of a process.

    Args:
        authenticator: checks passes.
        now: the clock by which the authenticator says when a pass expires, monotonic seconds.

    Attributes:
        pass_bytes: approximate memory of all passes.
        passes_full: passes refused for lack of room, since the start.
    """

    def __init__(self, authenticator: Authenticator, now: Callable[[], float]) -> None:
        self._authenticator = authenticator
        self._now = now
        self._sights: dict[Session, NamePatterns] = {}  # those of tokens
        self._passes: dict[Session, list[Pass]] = {}
        self.pass_bytes = self.passes_full = 0
        self._checks: KeyedRateLimiter[str] = KeyedRateLimiter(PASS_CHECKS_PER_S, PASS_CHECKS_BURST)
        self._expiry: DeadlineWheel[Session] = DeadlineWheel(now())  # when the first pass of each expires

    @property
    def passes(self) -> int:
        """The number of connections that have given a pass."""
        return len(self._passes)

    def set_sight(self, session: Session, sight: NamePatterns) -> None:
        """Set what a new or renewed token says; passes stay."""
        self._sights[session] = sight

    def discard(self, session: Session) -> None:
        """Forget a session whose connection is lost."""
        self._checks.tidy(self._now(), MAX_TIDIED_PER_LOSS)
        self._sights.pop(session, None)
        if session in self._passes:
            self._expiry.discard(session)
            self._keep(session, [])

    def allows(self, session: Session, uid: str) -> bool:
        if uid == session.uid or self._sights.get(session, NO_PATTERNS).includes(uid):
            return True
        return any(each.sight.includes(uid) for each in self._passes.get(session, ()))

    def hidden(self, session: Session, uids: Iterable[str]) -> list[str]:
        """Return those of some users whom the user of a session may not see."""
        return [uid for uid in uids if not self.allows(session, uid)]

    def take_pass(self, session: Session, text: str, now: float) -> Refusal | None:
        """Check a pass that a connection gives, and hold it until it expires; return why not."""
        passes = self._passes.get(session, [])
        if any(each.text == text for each in passes):
            return None
        if len(passes) >= MAX_PASSES:
            return Refusal(Code.TOO_LARGE, f"a connection may hold {MAX_PASSES} passes")
        if self.pass_bytes >= MAX_PASS_BYTES:
            self.passes_full += 1
            return Refusal(Code.BUSY, "there is no room for more passes", spread_over(FULL_RETRY_S))
        if not self._checks.take(session.uid, now):
            retry_after = round(self._checks.wait_s(session.uid, now) + 0.01, 2)
            return Refusal(Code.RATE_LIMITED, "too many passes in a short time", retry_after)
        result = self._authenticator.check_pass(text, session.uid, now)
        if not isinstance(result, Granted):
            return result
        size = _bytes_of(text, result.sight)
        self._keep(session, [*passes, Pass(text, result.sight, result.expires_at, size)])
        return None

    def pop_expired(self, limit: int) -> list[Session] | None:
        """Drop passes that have expired, of at most `limit` connections.

        Returns:
            The connections, which may see less than before; None: no more passes have expired.
        """
        now = self._now()
        sessions = self._expiry.pop_due(now, limit)
        for session in sessions or ():
            self._keep(session, [each for each in self._passes[session] if each.expires_at > now])
        return sessions

    def _keep(self, session: Session, passes: list[Pass]) -> None:
        self.pass_bytes -= sum(each.size_bytes for each in self._passes.pop(session, ()))
        self.pass_bytes += sum(each.size_bytes for each in passes)
        if passes:
            self._passes[session] = passes
            self._expiry.set(session, min(each.expires_at for each in passes))
