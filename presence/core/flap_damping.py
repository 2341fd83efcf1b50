"""Who comes and goes all the time gets a longer grace instead of a ban: pure, time is an argument.

A *return* is a login of a device that had lost its connection: in its grace, after the end that followed it,
or on another node while it was lost. Beyond so many returns within a minute each doubles the next grace, up
to a bound; each minute without one takes a doubling back.

Each process counts what it sees: of a return to another one, no more than that it was within the grace here.

Whoever has lost a connection has a place in a bounded table, O(1) for each loss and return; if it is full,
whose last loss is the longest ago is forgotten.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

MINUTE_S: Final = 60.0
TABLE_SIZE: Final = 10_000  # of some 300 bytes each; a loss that is forgotten costs one return its count


@dataclass(slots=True)
class FlapDampingCounters:
    """Keys in the table, and counters since the start: graces that were lengthened, keys forgotten."""

    known: int = 0
    lengthened: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class _FlapRecord:
    """One who lost a connection."""

    returns: tuple[float, ...] = ()  # when it came back, of the last minute, the oldest first
    doublings: int = 0  # of its next grace
    quiet_since: float = 0.0  # since when it has been quiet, as far as doublings were not taken back for it
    lost: bool = False  # whether its connection is lost, and it has not come back
    grace_s: float = 0.0  # what it has, or had, for coming back


class FlapDamping:
    """How long each who loses its connection may be gone.

    Args:
        grace_s: seconds, of whoever does not flap; 0 has no double.
        returns_a_minute: beyond so many the next grace is doubled; 0: never.
        max_grace_s: seconds that doubling does not go beyond.
        size: most keys that are known at once.
    """

    def __init__(
        self,
        grace_s: float,
        max_returns_per_minute: int = 0,
        max_grace_s: float = 0.0,
        size: int = TABLE_SIZE,
    ) -> None:
        self._grace_s = grace_s
        self._limit = max_returns_per_minute
        self._max_grace_s = max_grace_s
        self._size = size
        self._is_on = bool(max_returns_per_minute) and 0 < grace_s < max_grace_s
        self._table: dict[Hashable, _FlapRecord] = {}  # by the last loss
        self._counters = FlapDampingCounters()

    def connection_lost(self, key: Hashable, now: float) -> float:
        """A connection is lost; return for how many seconds its session lives on."""
        if not self._is_on:
            return self._grace_s
        record = self._table.pop(key, None) or _FlapRecord()
        self._table[key] = record
        if len(self._table) > self._size:
            del self._table[next(iter(self._table))]
            self._counters.forgotten += 1
        self._decay(record, now)
        record.lost = True
        record.grace_s = min(self._grace_s * 2**record.doublings, self._max_grace_s)
        self._counters.lengthened += record.grace_s > self._grace_s
        return record.grace_s

    def reconnected(self, key: Hashable, now: float) -> None:
        """There is a login of `key`, on whatever node; of whom no loss is known it means nothing."""
        record = self._table.get(key)
        if record is None or not record.lost:
            return
        record.lost = False
        self._decay(record, now)
        record.quiet_since = now
        record.returns = (*(at for at in record.returns if now - at < MINUTE_S), now)[-self._limit - 1 :]
        if len(record.returns) > self._limit and self._grace_s * 2**record.doublings < self._max_grace_s:
            record.doublings += 1

    def extended_grace_ms(self, key: Hashable) -> int:
        """Return the milliseconds of the grace that who is lost has, if it was lengthened; else 0."""
        record = self._table.get(key)
        if record is None or not record.lost or record.grace_s <= self._grace_s:
            return 0
        return round(record.grace_s * 1000)

    def statistics(self) -> FlapDampingCounters:
        """Return the counters."""
        return replace(self._counters, known=len(self._table))

    def _decay(self, record: _FlapRecord, now: float) -> None:
        """Take a doubling back for each minute without a return."""
        quiet = int((now - record.quiet_since) / MINUTE_S)
        record.doublings = max(0, record.doublings - quiet)
        record.quiet_since += quiet * MINUTE_S
