"""Rate limits: a token bucket, and a bounded table of token buckets by address, user or session.

A key that is not in the table has a full bucket. A bucket in the table is one number, the time at which it
will be full again (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371). Taking a
token moves it by 1/rate; the bucket is empty when it lies burst/rate ahead.

Full buckets are dropped. Each change examines the two buckets that were examined longest ago, and `tidy`
examines more. So the table has few full buckets, at O(1) per change. A table at its bound drops the bucket
that was used longest ago, which gives its owner a full one.

A table has the hashes of its keys, not the keys, because a name may take 600 bytes. Python hashes texts with
a secret of the process, so clients cannot choose two that share a bucket.

Memory: some 150 bytes per bucket, 280 if it has refused. A growing table is rehashed now and then: 15 ms at
its bound.
Pure: time is an argument.

Tests: `tests/core/test_admission.py`, `tests/auth/test_token_authenticator.py`.
"""

import random
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0  # the maximum of a client's own back-off
TABLE_SIZE: Final = 100_000  # at most 30 MB, when it is full
MAX_TIDIED_PER_TICK: Final = 2000  # buckets examined: a millisecond
DEBT_SPANS: Final = 2  # an overdrawn bucket is full again after at most this many times burst/rate
_TIDIED_PER_CHANGE: Final = 2  # more than one, so that full buckets become fewer


class TokenBucket:
    """A token bucket: `burst` tokens at once, refilled at `rate` per second.

    Times are monotonic seconds. `refused` counts refusals since the start.
    """

    __slots__ = ("_at", "_backlog", "_burst", "_rate", "_tokens", "refused")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._backlog = 0.0  # refused, and still to be served at `rate`
        self._at = now
        self.refused = 0

    def has(self, now: float, tokens: float = 1.0, *, reserve: float = 0.0) -> bool:
        """Return whether there are `tokens` beside `reserve`."""
        gained = (now - self._at) * self._rate
        self._at = now
        self._tokens = min(self._burst, self._tokens + gained)
        self._backlog = max(0.0, self._backlog - gained)
        return self._tokens - tokens >= reserve

    def take(self, now: float, tokens: float = 1.0, *, reserve: float = 0.0) -> bool:
        """Take tokens if there are enough; else count them as refused."""
        if not self.has(now, tokens, reserve=reserve):
            self.refuse(tokens)
            return False
        self._tokens -= tokens
        return True

    def spend(self, tokens: float = 1.0) -> None:
        """Take tokens that there are, as `has` has just said."""
        self._tokens -= tokens

    def refuse(self, tokens: float = 1.0) -> None:
        """Count missing tokens; the client that asked for them is expected to retry."""
        self.refused += 1
        self._backlog += tokens

    def retry_after(self) -> float:
        """Return a retry time for the last refused client, spread over the time that all of them need."""
        return spread_over(2 * self._backlog / self._rate)


class KeyedRateLimiter(Generic[K]):
    """Token buckets of one rate and burst, by key, in a table of at most `size`; see `TokenBucket`.

    `refused` and `forgotten` count the tokens refused and the buckets dropped for room since the start.
    """

    def __init__(self, rate: float, burst: float, size: int = TABLE_SIZE) -> None:
        self._token_s = 1 / rate
        self._span_s = burst / rate
        self._full_span_s = self._span_s * (1 + 1e-9)  # allows for rounding errors
        self._size = size
        self._full_at: OrderedDict[int, float] = (
            OrderedDict()
        )  # by hash; ordered by the last use or examination
        self._served_at: dict[int, float] = {}  # of refused keys: when all refused tokens will be available
        self.refused = self.forgotten = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def has(self, key: K, now: float, tokens: float = 1) -> bool:
        full_at = max(self._full_at.get(hash(key), now), now) + tokens * self._token_s
        return full_at - now <= self._full_span_s

    def wait_s(self, key: K, now: float, tokens: float = 1) -> float:
        """Return in how many seconds there will be enough tokens, if none is taken meanwhile."""
        full_at = max(self._full_at.get(hash(key), now), now)
        return max(0.0, full_at + tokens * self._token_s - (now + self._span_s))

    def take(self, key: K, now: float, tokens: float = 1) -> bool:
        """Take tokens if there are enough; else take none, and count them as refused."""
        hashed = hash(key)
        full_at = max(self._full_at.get(hashed, now), now) + tokens * self._token_s
        if full_at - now > self._full_span_s:
            self.refuse(key, now, tokens)
            return False
        self._move(hashed, now, full_at)
        return True

    def charge(self, key: K, now: float, tokens: float = 1) -> None:
        """Take tokens even if there are not enough: the bucket is overdrawn, up to a bound."""
        hashed = hash(key)
        full_at = max(self._full_at.get(hashed, now), now) + tokens * self._token_s
        self._move(hashed, now, min(full_at, now + DEBT_SPANS * self._span_s))

    def refuse(self, key: K, now: float, tokens: float = 1) -> None:
        """Count missing tokens; the client that asked for them is expected to retry."""
        self.refused += int(tokens)
        hashed = hash(key)
        if hashed in self._full_at:
            self._full_at.move_to_end(hashed)
            served_at = max(self._served_at.get(hashed, now), now)
            self._served_at[hashed] = served_at + tokens * self._token_s

    def retry_after(self, key: K, now: float) -> float:
        """Return a retry time after a refusal, spread over the time that the key's refused tokens need."""
        return spread_over(2 * max(0.0, self._served_at.get(hash(key), now) - now))

    def tidy(self, now: float, most: int = MAX_TIDIED_PER_TICK) -> None:
        """Examine at most `most` buckets, and drop those that are full."""
        buckets = self._full_at
        for _ in range(min(most, len(buckets))):
            hashed, full_at = next(iter(buckets.items()))
            if full_at <= now:
                self._drop(hashed)
            else:
                buckets.move_to_end(hashed)

    def drop(self, key: K) -> None:
        """Drop a bucket that is full, or whose owner has gone."""
        self._drop(hash(key))

    def _drop(self, hashed: int) -> None:
        self._full_at.pop(hashed, None)
        self._served_at.pop(hashed, None)

    def _move(self, hashed: int, now: float, full_at: float) -> None:
        buckets = self._full_at
        buckets[hashed] = full_at
        buckets.move_to_end(hashed)
        if len(buckets) > 1:  # as `tidy` does; in line, because each packet comes here
            for _ in range(_TIDIED_PER_CHANGE):
                oldest = next(iter(buckets))
                if buckets[oldest] <= now:
                    self._drop(oldest)
                else:
                    buckets.move_to_end(oldest)
        if len(buckets) > self._size:
            self._drop(next(iter(buckets)))
            self.forgotten += 1


def spread_over(window_s: float) -> float:
    """Return a random retry time within a window, which is never too short to spread a crowd."""
    return spread(RETRY_MIN_S, RETRY_MIN_S + max(RETRY_MIN_S, window_s))


def spread(low_s: float, high_s: float) -> float:
    """Return a random retry time, with the resolution of the wire."""
    return round(random.uniform(low_s, min(high_s, RETRY_MAX_S)), 2)  # noqa: S311 - spreads load, no secret
