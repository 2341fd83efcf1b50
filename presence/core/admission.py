"""Admission control: limits on connections, accepts, logins and packets, and the retry time of a refusal.

A server at its limits refuses instead of queueing: a queue would only fill with clients that have given up
by the time they are served. Each refusal has its own retry time, drawn from the time that the bucket needs to
serve all clients refused before. So a crowd of any size comes back at the rate that can be served, and not in
one wave.

The server's own limits refuse with `busy`; those of one address or one user with `rate_limited`.
The tables of addresses and users are bounded (see `rate_limit.py`); the table of open connections by address
has at most one entry per connection.

Time is always that of its own clock, so all transports of a process may share it.
"""

from dataclasses import dataclass, replace

from presence import protocol
from presence.common.clock import Clock
from presence.common.rate_limit import RETRY_MIN_S, KeyedRateLimiter, TokenBucket, spread, spread_over
from presence.core.authenticator import Refusal
from presence.protocol import Code


class PacketRate:
    """Limits the packets of each user after the login.

    Args:
        rate: packets per second in the long run.
        burst: burst size.

    Attributes:
        floods: connections closed for exceeding it, since the start.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._buckets = KeyedRateLimiter[str](rate, burst)
        self._calm_s = burst / rate
        self.floods = 0

    @property
    def table_size(self) -> int:
        """Users in the table."""
        return len(self._buckets)

    def count_packets(self, uid: str, packets: int, now: float) -> bytes | None:
        """Count packets of a user; return an encoded goodbye if they exceed the limit."""
        wait_s = self.wait_s(uid, packets, now)
        if wait_s is None:
            return None
        return protocol.encode(protocol.goodbye(Code.RATE_LIMITED, retry_after=wait_s))

    def wait_s(self, uid: str, packets: int, now: float) -> float | None:
        """Count packets of a user; return the time until a retry if they exceed the limit."""
        if self._buckets.take(uid, now, packets):
            return None
        self.floods += 1
        return spread_over(self._calm_s)

    def tidy(self, now: float) -> None:
        """Drop full buckets; called in each slot."""
        self._buckets.tidy(now)


FULL_RETRY_S = 10.0  # upper bound of the retry time at `max_connections`, where no rate tells a better one


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of one process."""

    max_connections: int = 10_000  # open connections
    accept_rate: float = 10_000  # connections per second
    accept_burst: float = 20_000
    login_rate: float = 5_000  # logins per second
    login_burst: float = 20_000
    address_connections: int = 0  # open connections from one address; 0: no limit
    address_login_rate: float = 0  # logins per second from one address; 0: no limit
    address_login_burst: float = 20_000
    uid_login_rate: float = 0  # logins per second of one user; 0: no limit
    uid_login_burst: float = 1000
    max_refused_open: int = 32  # connections beyond `max_connections` that are open to be sent a refusal


@dataclass(slots=True)
class AdmissionStatistics:
    """Current entries of the tables (`…_kept`); refusals by limit and buckets dropped, since the start."""

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
    """Decides on each accepted connection and each login.

    Args:
        clock: monotonic time.

    Attributes:
        counts_connections: whether connections from one address are limited.
        counts_logins: whether logins from one address are limited.
    """

    def __init__(self, limits: AdmissionLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        now = clock.now()
        self._accepts = TokenBucket(limits.accept_rate, limits.accept_burst, now)
        self._logins = TokenBucket(limits.login_rate, limits.login_burst, now)
        self.counts_connections = bool(limits.address_connections)
        self.counts_logins = bool(limits.address_login_rate)
        self._connections: dict[str, int] = {}  # connections by address
        self._counts_uids = bool(limits.uid_login_rate)
        # The table of a limit that is off stays empty, so its rate does not matter.
        self._by_address = KeyedRateLimiter[str](limits.address_login_rate or 1, limits.address_login_burst)
        self._by_uid = KeyedRateLimiter[str](limits.uid_login_rate or 1, limits.uid_login_burst)
        self._counters = AdmissionStatistics()

    def room(self, open_now: int) -> int:
        """Return how many more connections may be open beside `open_now`, if only to be refused.

        Connections beyond `max_connections` use descriptors that are reserved for Redis and files.
        """
        return max(0, self._limits.max_connections + self._limits.max_refused_open - open_now)

    def admit_connection(self, open_now: int) -> float | None:
        """Return None if a connection is admitted beside `open_now` others, else seconds until a retry."""
        if open_now >= self._limits.max_connections:
            self._counters.connections_full += 1
            return spread(RETRY_MIN_S, FULL_RETRY_S)
        return None if self._accepts.take(self._clock.now()) else self._accepts.retry_after()

    def add_connection(self, address: str) -> Refusal | None:
        present = self._connections.get(address, 0)
        if self.counts_connections and present >= self._limits.address_connections:
            self._counters.address_connections_refused += 1
            message = "there are too many connections from this address"
            return Refusal(Code.RATE_LIMITED, message, spread(RETRY_MIN_S, FULL_RETRY_S))
        self._connections[address] = present + 1
        return None

    def remove_connection(self, address: str) -> None:
        present = self._connections.pop(address) - 1
        if present:
            self._connections[address] = present

    def check_login(self, address: str = "") -> Refusal | None:
        """Return None if a login of an unknown user would be admitted; counts nothing.

        Args:
            address: of the client; "" only if its transport has no addresses.
        """
        now = self._clock.now()
        if not self._logins.has(now):
            self._logins.refuse()
            message = "this server takes no more logins at present"
            return Refusal(Code.BUSY, message, self._logins.retry_after())
        if self.counts_logins and address and not self._by_address.has(address, now):
            self._by_address.refuse(address, now)
            return _refusal(self._by_address, address, now, "there are too many logins from this address")
        return None

    def admit_login(self, address: str = "", uid: str = "") -> Refusal | None:
        """Count a login and return None if it is admitted; else count nothing."""
        if (refusal := self.check_login(address)) is not None:
            return refusal
        now = self._clock.now()
        if self._counts_uids and uid and not self._by_uid.take(uid, now):
            return _refusal(self._by_uid, uid, now, "there are too many logins of this user")
        if self.counts_logins and address:
            self._by_address.take(address, now)
        self._logins.spend()
        return None

    def tidy(self) -> None:
        """Drop full buckets; called in each slot."""
        now = self._clock.now()
        self._by_address.tidy(now)
        self._by_uid.tidy(now)

    def statistics(self) -> AdmissionStatistics:
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


def _refusal(buckets: KeyedRateLimiter[str], key: str, now: float, message: str) -> Refusal:
    return Refusal(Code.RATE_LIMITED, message, buckets.retry_after(key, now))
