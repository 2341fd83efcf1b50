"""Token buckets of many, in a bounded table: by address, by user, by connection.

Whoever is not in the table has a full bucket. A bucket is one number, the moment at which it will be full
again (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371): to take a token moves
it by 1/rate, and there is none left once it lies more than burst/rate ahead.

Full buckets are dropped. Each change of the table looks at the two that were looked at longest ago, and
`tidy` at more: so the table holds little beside those that are not full, at O(1) for each change. A table
that is at its bound forgets the bucket that was touched longest ago, for whose owner that is a favour.

Memory: some 120 bytes beside the key. A table that grows is laid out anew now and then, as any hash table is:
15 ms at its bound. Pure: time is an argument.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

TABLE_SIZE = 100_000  # some 20 MB with the keys, when somebody fills it
_LOOKS = 2  # at buckets that may be full, for each that changes: one would only keep pace


class Buckets(Generic[K]):
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

    def has(self, key: K, now: float, tokens: int = 1) -> bool:
        """Return whether there are so many tokens."""
        full_at = max(self._full_at.get(key, now), now)
        return full_at + tokens * self._token_s <= now + self._span_s * (1 + 1e-9)  # it was added up

    def take(self, key: K, now: float, tokens: int = 1) -> bool:
        """Take tokens if there are so many; else take none, and count them as refused."""
        if not self.has(key, now, tokens):
            self.refuse(key, now, tokens)
            return False
        self._full_at[key] = max(self._full_at.get(key, now), now) + tokens * self._token_s
        self._full_at.move_to_end(key)
        self.tidy(now, _LOOKS)
        if len(self._full_at) > self._size:
            self._drop(next(iter(self._full_at)))
            self.forgotten += 1
        return True

    def refuse(self, key: K, now: float, tokens: int = 1) -> None:
        """Count tokens that are not there: whoever asked for them is asked to come back for them."""
        self.refused += tokens
        if key in self._full_at:
            self._full_at.move_to_end(key)
            served_at = max(self._served_at.get(key, now), now)
            self._served_at[key] = served_at + tokens * self._token_s

    def wait_s(self, key: K, now: float) -> float:
        """Return in how many seconds all who were refused could have been served."""
        return max(0.0, self._served_at.get(key, now) - now)

    def tidy(self, now: float, most: int) -> None:
        """Look at no more than so many buckets, and drop those that are full."""
        for _ in range(min(most, len(self._full_at))):
            key = next(iter(self._full_at))
            if self._full_at[key] <= now:
                self._drop(key)
            else:
                self._full_at.move_to_end(key)

    def _drop(self, key: K) -> None:
        del self._full_at[key]
        self._served_at.pop(key, None)
