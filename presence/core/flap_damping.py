"""Flap damping: a device that reconnects frequently gets a longer grace period instead of a ban.

A *return* is a login of a device that had lost its connection: within its grace period, after its session
ended, or on another node. Beyond a number of returns per minute, each further return doubles the next grace
period, up to a maximum. Each minute without a return takes one doubling back.

Each process counts only what it sees. A return to another process counts here only if it falls within the
grace period here.

Devices that have lost a connection are kept in a bounded table, O(1) for each loss and return. When it is
full, the device whose last loss is the longest ago is dropped.

Pure: time is an argument.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

MINUTE_S: Final = 60.0
MAX_RETURNS_PER_MINUTE: Final = 6  # one in ten seconds is no network that recovers
MAX_GRACE_S: Final = 60.0  # an offline event may be that late
TABLE_SIZE: Final = 10_000  # some 300 bytes each; a dropped device's next return is not counted


@dataclass(slots=True)
class FlapDampingCounters:
    """Devices in the table (`known`); graces extended (`lengthened`) and devices dropped, since the start."""

    known: int = 0
    lengthened: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class _FlapRecord:
    """A device that lost a connection."""

    returns: tuple[float, ...] = ()  # times of the last minute's returns, oldest first
    doublings: int = 0  # of its next grace
    quiet_since: float = 0.0  # start of the quiet time for which no doubling was taken back yet
    lost: bool = False  # whether it has lost its connection and not returned
    grace_s: float = 0.0  # its current or last grace


class FlapDamping:
    """Computes the grace period of each device that loses its connection.

    Args:
        grace_s: the usual grace, seconds; 0, or one from `max_grace_s` on, is never extended.
        max_returns_per_minute: more returns double the next grace; 0: never.
        max_grace_s: seconds, maximum of an extended grace.
        size: maximum of devices in the table.
    """

    def __init__(
        self,
        grace_s: float,
        max_returns_per_minute: int = MAX_RETURNS_PER_MINUTE,
        max_grace_s: float = MAX_GRACE_S,
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
        """Record the loss of a connection; return the grace in seconds."""
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
        """Record a login of `key` on any node; without a known loss it counts nothing."""
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
        """Return a lost device's grace in milliseconds if it was extended, else 0."""
        record = self._table.get(key)
        if record is None or not record.lost or record.grace_s <= self._grace_s:
            return 0
        return round(record.grace_s * 1000)

    def statistics(self) -> FlapDampingCounters:
        return replace(self._counters, known=len(self._table))

    def _decay(self, record: _FlapRecord, now: float) -> None:
        """Take a doubling back for each minute without a return."""
        quiet = int((now - record.quiet_since) / MINUTE_S)
        record.doublings = max(0, record.doublings - quiet)
        record.quiet_since += quiet * MINUTE_S
