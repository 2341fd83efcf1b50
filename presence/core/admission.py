"""Who is let in: bounds on connections, on accepts and on logins, and when to come back if one is hit.

A server at its limits refuses and does not delay: a queue would only fill with clients that have given up
by the time they are served. Each refusal names its own time to return. It is drawn from the time in which
the bucket could serve all who were refused before, so a crowd of any size comes back at the rate that
can be served and not in one wave.

What is too much for the server is `busy`; what is too much of one address or one user is `rate_limited`.
The tables of addresses and users are bounded, see `buckets.py`; that of connections has an entry for each.

Pure: time is an argument.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from presence import protocol
from presence.common.rate_limit import RETRY_MIN_S, KeyedRateLimiter, TokenBucket, spread, spread_over
from presence.protocol import Code


class PacketRate:
    """Packets of each user, after the login.

    Args:
        rate: packets a second in the long run.
        burst: and how many at once.

    Attributes:
        floods: connections that were closed for it, since the start.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._buckets = KeyedRateLimiter[str](rate, burst)
        self._calm_s = burst / rate
        self.floods = 0

    @property
    def table_size(self) -> int:
        """How many users are in the table."""
        return len(self._buckets)

    def count_packets(self, uid: str, packets: int, now: float) -> bytes | None:
        """Count packets of a user; return the goodbye if they are too many."""
        if self._buckets.take(uid, now, packets):
            return None
        self.floods += 1
        return protocol.encode(protocol.goodbye(Code.RATE_LIMITED, retry_after=spread_over(self._calm_s)))

    def tidy(self, now: float) -> None:
        """Drop what is as good as forgotten; called at each tick."""
        self._buckets.tidy(now)


FULL_RETRY_S = 10.0  # when there is no room at all: nobody knows when there will be


class Refusal(NamedTuple):
    """What somebody is told who is not let in: the code, a sentence, and seconds after which to come back."""

    code: Code
    message: str
    retry_after: float


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of one process."""

    max_connections: int = 10_000  # connections at once
    accept_rate: float = 10_000  # connections a second
    accept_burst: float = 20_000  # and at once
    login_rate: float = 5_000  # logins a second
    login_burst: float = 20_000  # and at once
    address_connections: int = 0  # connections at once from one address; 0: no limit
    address_login_rate: float = 0  # logins from one address a second; 0: no limit
    address_login_burst: float = 20_000
    uid_login_rate: float = 0  # logins of one user a second; 0: no limit
    uid_login_burst: float = 1000
    max_refused_open: int = 32  # connections beyond the bound that are open at once, to be told so


@dataclass(slots=True)
class AdmissionStatistics:
    """Entries of the tables now, and refusals since the start, by limit; beside them buckets forgotten."""

    connections_full: int = 0
    accepts_refused: int = 0
    logins_refused: int = 0
    address_connections_refused: int = 0
    address_logins_refused: int = 0
    uid_logins_refused: int = 0
    address_connections_kept: int = 0
    address_logins_kept: int = 0
    uid_logins_kept: int = 0
    forgotten: int = 0


class Admission:
    """Asked at each accept and at each login.

    Args:
        limits: see `AdmissionLimits`.
        now: monotonic seconds.

    Attributes:
        counts_connections: whether connections of one address are bounded.
        counts_logins: whether logins from one address are.
    """

    def __init__(self, limits: AdmissionLimits, now: float) -> None:
        self._limits = limits
        self._accepts = TokenBucket(limits.accept_rate, limits.accept_burst, now)
        self._logins = TokenBucket(limits.login_rate, limits.login_burst, now)
        self.counts_connections = bool(limits.address_connections)
        self.counts_logins = bool(limits.address_login_rate)
        self._connections: dict[str, int] = {}  # connections by address
        self._counts_uids = bool(limits.uid_login_rate)
        # A table that is not needed stays empty, whatever its rate.
        self._by_address = KeyedRateLimiter[str](limits.address_login_rate or 1, limits.address_login_burst)
        self._by_uid = KeyedRateLimiter[str](limits.uid_login_rate or 1, limits.uid_login_burst)
        self._counters = AdmissionStatistics()

    def has_room(self, open_now: int) -> bool:
        """Whether one more connection may be open, if only to be turned away.

        What is open beyond `max_connections` uses up descriptors that are kept for Redis and files.
        """
        return open_now < self._limits.max_connections + self._limits.max_refused_open

    def admit_connection(self, open_now: int, now: float) -> float | None:
        """Return None if a connection is welcome beside `open_now` others, else its seconds to come back."""
        if open_now >= self._limits.max_connections:
            self._counters.connections_full += 1
            return spread(RETRY_MIN_S, FULL_RETRY_S)
        return None if self._accepts.take(now) else self._accepts.retry_after()

    def add_connection(self, address: str) -> Refusal | None:
        """Count one more connection of an address, unless it has as many as it may have."""
        present = self._connections.get(address, 0)
        if self.counts_connections and present >= self._limits.address_connections:
            self._counters.address_connections_refused += 1
            message = "there are too many connections from this address"
            return Refusal(Code.RATE_LIMITED, message, spread(RETRY_MIN_S, FULL_RETRY_S))
        self._connections[address] = present + 1
        return None

    def remove_connection(self, address: str) -> None:
        """Count one less."""
        present = self._connections.pop(address) - 1
        if present:
            self._connections[address] = present

    def check_login(self, now: float, address: str = "") -> Refusal | None:
        """Return None if a login would be welcome, whoever it is of: nothing is taken yet.

        Args:
            now: monotonic seconds.
            address: where it comes from; needed if `counts_logins`, and "" for a client that has none.
        """
        if not self._logins.has(now):
            self._logins.refuse()
            message = "this server takes no more logins at present"
            return Refusal(Code.BUSY, message, self._logins.retry_after())
        if self.counts_logins and address:
            return _check(self._by_address, address, now, "there are too many logins from this address")
        return None

    def admit_login(self, now: float, address: str = "", uid: str = "") -> Refusal | None:
        """Return None if a login is welcome, which it then has been; else nothing is taken."""
        if (refusal := self.check_login(now, address)) is not None:
            return refusal
        if self._counts_uids and uid:
            if (
                refusal := _check(self._by_uid, uid, now, "there are too many logins of this user")
            ) is not None:
                return refusal
            self._by_uid.take(uid, now)
        if self.counts_logins and address:
            self._by_address.take(address, now)
        self._logins.take(now)
        return None

    def tidy(self, now: float) -> None:
        """Drop what is as good as forgotten; called at each tick."""
        self._by_address.tidy(now)
        self._by_uid.tidy(now)

    def statistics(self) -> AdmissionStatistics:
        """Return the counters."""
        return replace(
            self._counters,
            accepts_refused=self._accepts.refused,
            logins_refused=self._logins.refused,
            address_logins_refused=self._by_address.refused,
            uid_logins_refused=self._by_uid.refused,
            address_connections_kept=len(self._connections),
            address_logins_kept=len(self._by_address),
            uid_logins_kept=len(self._by_uid),
            forgotten=self._by_address.forgotten + self._by_uid.forgotten,
        )


def _check(buckets: KeyedRateLimiter[str], key: str, now: float, message: str) -> Refusal | None:
    """Return what one without a token is told."""
    if buckets.has(key, now):
        return None
    buckets.refuse(key, now)
    return Refusal(Code.RATE_LIMITED, message, buckets.retry_after(key, now))
