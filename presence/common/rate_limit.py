"""Rate limits: one token bucket for all, and buckets of many in a bounded table, by address, user, session.

Whoever is not in the table has a full bucket. A bucket of the table is one number, the moment at which it
will be full again (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371): to take a
token moves it by 1/rate, and there is none left once it lies more than burst/rate ahead.

Full buckets are dropped. Each change of the table looks at the two that were looked at longest ago, and
`tidy` at more: so the table holds little beside those that are not full, at O(1) for each change. A table
that is at its bound forgets the bucket that was touched longest ago, for whose owner that is a favour.

Memory: some 120 bytes beside the key. A table that grows is laid out anew now and then, as any hash table is:
15 ms at its bound. Pure: time is an argument.
"""

import random
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 60.0  # a client bounds its own back-off so
TABLE_SIZE: Final = 100_000  # some 20 MB with the keys, when somebody fills it
MAX_TIDIED_PER_TICK: Final = 2000  # buckets that are looked at whether they may be dropped: a millisecond
DEBT_SPANS: Final = 2  # a bucket that `charge` overdraws is full again after so many times burst/rate at most
_TIDIED_PER_CHANGE: Final = 2  # at buckets that may be full, for each that changes: one would only keep pace


class TokenBucket:
    """So many at once, so many a second from then on.

    Args:
        rate: tokens that come back a second.
        burst: tokens at first, and the most that are kept.
        now: monotonic seconds.

    Attributes:
        refused: how often there were not enough, since the start.
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
        """Return whether there are so many tokens beside those that are kept in reserve for others."""
        gained = (now - self._at) * self._rate
        self._at = now
        self._tokens = min(self._burst, self._tokens + gained)
        self._backlog = max(0.0, self._backlog - gained)
        return self._tokens - tokens >= reserve

    def take(self, now: float, tokens: float = 1.0, *, reserve: float = 0.0) -> bool:
        """Take tokens if there are so many; else they count as refused."""
        if not self.has(now, tokens, reserve=reserve):
            self.refuse(tokens)
            return False
        self._tokens -= tokens
        return True

    def refuse(self, tokens: float = 1.0) -> None:
        """Count tokens that are not there: whoever asked for them is asked to come back for them."""
        self.refused += 1
        self._backlog += tokens

    def retry_after(self) -> float:
        """Return seconds for the one that was just refused, spread over the time that all of them need."""
        return spread_over(2 * self._backlog / self._rate)


class KeyedRateLimiter(Generic[K]):
    """Token buckets of one rate and burst, by key.

    Args:
        rate: tokens that come back a second.
        burst: tokens at first, and the most that are kept.
        size: most buckets that are kept.

    Attributes:
        refused, forgotten: counters since the start: tokens that were not there, buckets dropped for room.
    """

    def __init__(self, rate: float, burst: float, size: int = TABLE_SIZE) -> None:
        self._token_s = 1 / rate
        self._span_s = burst / rate
        self._size = size
        self._full_at: OrderedDict[K, float] = OrderedDict()  # by the last touch or look
        self._served_at: dict[K, float] = {}  # of those refused: when all that was asked for can be served
        self.refused = self.forgotten = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def has(self, key: K, now: float, tokens: float = 1) -> bool:
        """Return whether there are so many tokens."""
        return self.wait_s(key, now, tokens) <= 1e-9 * self._span_s  # it was added up

    def wait_s(self, key: K, now: float, tokens: float = 1) -> float:
        """Return in how many seconds there will be so many tokens, if nobody takes one meanwhile."""
        full_at = max(self._full_at.get(key, now), now)
        return max(0.0, full_at + tokens * self._token_s - (now + self._span_s))

    def take(self, key: K, now: float, tokens: float = 1) -> bool:
        """Take tokens if there are so many; else take none, and count them as refused."""
        if not self.has(key, now, tokens):
            self.refuse(key, now, tokens)
            return False
        self._move(key, now, max(self._full_at.get(key, now), now) + tokens * self._token_s)
        return True

    def charge(self, key: K, now: float, tokens: float = 1) -> None:
        """Take tokens even where they are not there: whoever comes next waits. The debt has a bound."""
        full_at = max(self._full_at.get(key, now), now) + tokens * self._token_s
        self._move(key, now, min(full_at, now + DEBT_SPANS * self._span_s))

    def refuse(self, key: K, now: float, tokens: float = 1) -> None:
        """Count tokens that are not there: whoever asked for them is asked to come back for them."""
        self.refused += int(tokens)
        if key in self._full_at:
            self._full_at.move_to_end(key)
            served_at = max(self._served_at.get(key, now), now)
            self._served_at[key] = served_at + tokens * self._token_s

    def retry_after(self, key: K, now: float) -> float:
        """Return seconds for the one that was just refused, spread over the time that its key needs."""
        return spread_over(2 * max(0.0, self._served_at.get(key, now) - now))

    def tidy(self, now: float, most: int = MAX_TIDIED_PER_TICK) -> None:
        """Look at no more than so many buckets, and drop those that are full."""
        for _ in range(min(most, len(self._full_at))):
            key = next(iter(self._full_at))
            if self._full_at[key] <= now:
                self.drop(key)
            else:
                self._full_at.move_to_end(key)

    def drop(self, key: K) -> None:
        """Forget a bucket: its owner is gone, or has a full one."""
        self._full_at.pop(key, None)
        self._served_at.pop(key, None)

    def _move(self, key: K, now: float, full_at: float) -> None:
        self._full_at[key] = full_at
        self._full_at.move_to_end(key)
        self.tidy(now, _TIDIED_PER_CHANGE)
        if len(self._full_at) > self._size:
            self.drop(next(iter(self._full_at)))
            self.forgotten += 1


def spread_over(window_s: float) -> float:
    """Return a random time to come back within a window, which is never too short to spread a crowd."""
    return spread(RETRY_MIN_S, RETRY_MIN_S + max(RETRY_MIN_S, window_s))


def spread(low_s: float, high_s: float) -> float:
    """Return a random time to come back, with the resolution that the wire has room for."""
    return round(random.uniform(low_s, min(high_s, RETRY_MAX_S)), 2)  # noqa: S311 - spreads load, no secret
