"""Keeps the bans that this node knows equal to the table in Redis, and ends the sessions that they forbid.

The table is read before the first login, whenever another process says that it has changed, after each time
in which such a message may have been missed, and every minute. Each read compares the version first, so that
an unchanged table costs one short answer. While Redis is away, the bans known so far count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import Runtime
from presence.core.bans import Ban
from presence.outbox.outage_log import Outage
from presence.server.node import Node
from presence.store.bans import BanTable, StoredBan

REFRESH_INTERVAL_S: Final = 60.0  # in case a message was missed, as in a failover that lost the last writes
MIN_INTERVAL_S: Final = 0.25  # between two reads: a whole table has some 3 MB
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 2.0
MAX_BANS_PER_TURN: Final = 256  # of which hardly any has a session here

_log = structlog.get_logger(__name__)


class BanSource(Protocol):
    """The table: blocking calls, made from one thread at a time; see `presence.store.bans.Bans`."""

    def read(self, known: bytes | None = None) -> BanTable | None:
        """Return all bans; None if the version is still `known`. Raises `StoreUnavailable`, `StoreError`."""

    def close(self) -> None:
        """Close the connections; a call in another thread fails."""


@dataclass(eq=False, repr=False)
class BanKeeper:
    """Reads the table of bans, and applies it to a node."""

    node: Node
    source: BanSource  # used by this keeper only
    clock: Clock  # monotonic time
    runtime: Runtime

    def __post_init__(self) -> None:
        self._bans = self.node.engine.login_policy.bans
        self._thread = self.runtime.thread_caller(self.source.close)
        self._changed = self.runtime.wake_event()
        self._version: bytes | None = None  # None: the table was never read
        self._pause_s = 0.0  # until the next read, unless a change is announced
        self._outage = Outage(
            _log,
            unreachable="bans not read",
            refused="bans not read",
            recovered="bans read again",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )

    async def run(self) -> None:
        """Follow the table until cancelled."""
        while True:
            await self._changed.wait(self._pause_s)
            await self.refresh()
            await self.runtime.sleep(MIN_INTERVAL_S)

    def refresh_soon(self) -> None:
        """Have the table read again, because it may have changed."""
        self._changed.set()

    async def refresh(self) -> None:
        """Read the table if it has changed; after a failure the bans stay as they are."""
        known, now = self._version, self.clock.now
        try:
            found = await self._thread.call(lambda: _read(self.source, known, now))
        except (StoreUnavailable, StoreError) as error:
            self._pause_s = self._outage.failed("read", error)
            return
        self._outage.worked("read")
        self._pause_s = REFRESH_INTERVAL_S
        if found is not None:
            self._version, bans = found
            self._bans.replace(bans)
        else:
            at = now()
            bans = [each for each in self._bans.all() if each.ends_at > at]
            if len(bans) < len(self._bans):
                self._bans.replace(bans)
            return
        for first in range(0, len(bans), MAX_BANS_PER_TURN):
            for each in bans[first : first + MAX_BANS_PER_TURN]:
                self.node.enforce_ban(each)
            await self.runtime.sleep(0)


def _read(source: BanSource, known: bytes | None, now: Callable[[], float]) -> tuple[bytes, list[Ban]] | None:
    """Return the version and the bans of the table; None if it has not changed.

    No connection is kept for the minute until the next read.
    """
    try:
        table = source.read(known)
    finally:
        source.close()
    if table is None:
        return None
    at = now()  # after the answer, so that no ban ends early
    return table.version, [_ban(each, at, table.now_ms) for each in table.bans]


def _ban(stored: StoredBan, at: float, now_ms: int) -> Ban:
    ends_at = math.inf if stored.until_ms is None else at + (stored.until_ms - now_ms) / 1000
    return Ban(stored.uid, stored.device, ends_at, stored.reason)
