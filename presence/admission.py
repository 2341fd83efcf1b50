"""Who is let in: bounds on connections, on accepts and on logins, and when to come back if one is hit.

A server at its limits refuses and does not delay: a queue would only fill with clients that have given up
by the time they are served. Each refusal names its own time to return. It is drawn from the time in which
the bucket could serve all who were refused before, so a crowd of any size comes back at the rate that
can be served and not in one wave.

Pure: time is an argument.
"""

import random
from dataclasses import dataclass

RETRY_MIN_S = 1.0
RETRY_MAX_S = 60.0  # a client bounds its own back-off so
FULL_RETRY_S = 10.0  # when there is no room at all: nobody knows when there will be


class TokenBucket:
    """So many at once, so many a second from then on.

    Args:
        rate: tokens that come back a second.
        burst: tokens at first, and the most that are kept.
        now: monotonic seconds.

    Attributes:
        refused: how often there was none, since the start.
    """

    __slots__ = ("_at", "_burst", "_owed", "_rate", "_tokens", "refused")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._owed = 0.0  # refused, and still to be served at `rate`
        self._at = now
        self.refused = 0

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        gained = (now - self._at) * self._rate
        self._at = now
        self._tokens = min(self._burst, self._tokens + gained)
        self._owed = max(0.0, self._owed - gained)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return True
        self.refused += 1
        self._owed += 1.0
        return False

    def retry_after(self) -> float:
        """Return seconds for the one that was just refused, spread over the time that all of them need."""
        window_s = max(RETRY_MIN_S, 2 * self._owed / self._rate)
        return spread(RETRY_MIN_S, RETRY_MIN_S + window_s)


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of one process.

    Attributes:
        max_connections: connections at once.
        accept_rate, accept_burst: connections a second, and at once.
        login_rate, login_burst: logins a second, and at once.
    """

    max_connections: int = 10_000
    accept_rate: float = 10_000
    accept_burst: float = 20_000
    login_rate: float = 5_000
    login_burst: float = 20_000


class Admission:
    """Asked at each accept and at each login.

    Args:
        limits: see `AdmissionLimits`.
        now: monotonic seconds.
    """

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self._max_connections = limits.max_connections
        self._accepts = TokenBucket(limits.accept_rate, limits.accept_burst, now)
        self._logins = TokenBucket(limits.login_rate, limits.login_burst, now)
        self.full = 0

    def connection(self, open_now: int, now: float) -> float | None:
        """Return None if a connection is welcome beside `open_now` others, else its seconds to come back."""
        if open_now >= self._max_connections:
            self.full += 1
            return spread(RETRY_MIN_S, FULL_RETRY_S)
        return None if self._accepts.take(now) else self._accepts.retry_after()

    def login(self, now: float) -> float | None:
        """Return None if a login is welcome, else its seconds to come back."""
        return None if self._logins.take(now) else self._logins.retry_after()


def spread(low_s: float, high_s: float) -> float:
    """Return a random time to come back, with the resolution that the wire has room for."""
    return round(random.uniform(low_s, min(high_s, RETRY_MAX_S)), 2)  # noqa: S311 - spreads load, no secret
