"""Keeps the bans that this node knows equal to the table in Redis, and ends the sessions that they forbid.

The table is read before the first login, whenever another process says that it has changed, after each time
in which such a message may have been missed (the control channel was lost, or this node had no lease), and
every minute. Each read compares the version first, so that
an unchanged table costs one short answer. While Redis is away, the bans known so far count.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import structlog

from presence.common.clock import Clock
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.loop_calls import Pacer
from presence.common.outage import Outage
from presence.common.runtime import Runtime
from presence.core.ban_list import Ban, BanList
from presence.server.node_assembly import Node
from presence.store.ban_table import BanSnapshot

REFRESH_INTERVAL_S: Final = 60.0  # in case a message was missed, as in a failover that lost the last writes
MIN_INTERVAL_S: Final = 0.25  # between two reads,
IDLE_FACTOR: Final = 3.0  # or so many times what the last one took, if that is longer,
MAX_INTERVAL_S: Final = 0.75  # but no more, so that a ban takes effect within a second
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 2.0
MAX_BANS_PER_TURN: Final = 256  # of which hardly any has a session here

_log = structlog.get_logger(__name__)


class BanSource(Protocol):
    """The table of bans: blocking calls, one at a time."""

    def read(self, known: bytes | None = None) -> BanSnapshot | None:
        """Return all bans; None if the version is still `known`. Raises `StoreUnavailable`, `StoreError`."""

    def close(self) -> None:
        """Close the connections."""


class BanEnforcer:
    """Reads the table of bans, and applies it to a node.

    Args:
        node: calls `refresh_soon` when it has come into the table of leases.
        source: used by this enforcer only.
        clock: monotonic time.
        runtime: where its task runs.
    """

    def __init__(self, node: Node, source: BanSource, clock: Clock, runtime: Runtime) -> None:
        self._node = node
        self._source = source
        self._clock = clock
        self._runtime = runtime
        self._redis = runtime.loop_caller()
        self._changed = runtime.wake_event()
        self._version: bytes | None = None  # None: the table was never read
        self._pause_s = 0.0  # until the next read, unless a change is announced
        self._outage = Outage(
            _log,
            unreachable="bans not read",
            refused="bans not read",
            failed_otherwise="bans not read",
            recovered="bans read again",
            first_s=BACKOFF_FIRST_S,
            limit_s=BACKOFF_LIMIT_S,
        )
        node.cluster.on_entered = self.refresh_soon

    async def run(self) -> None:
        """Follow the table until cancelled."""
        while True:
            await self._changed.wait(self._pause_s)
            begun = self._clock.now()
            await self.refresh()
            took_s = self._clock.now() - begun
            await self._runtime.sleep(min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, IDLE_FACTOR * took_s)))

    def refresh_soon(self) -> None:
        """Have the table read again, because it may have changed."""
        self._changed.set()

    async def refresh(self) -> None:
        """Read the table if it has changed; after a failure the bans stay as they are."""
        policy = self._node.engine.login_policy
        known, version, now = policy.bans, self._version, self._clock.now
        try:
            found = await self._redis.call(lambda: _read(self._source, version, known, now))
        except Exception as error:
            if not isinstance(error, (StoreUnavailable, StoreError)):
                self._node.faults.record("control channel", error)
            self._pause_s = self._outage.failed("read", error)
            return
        self._outage.worked("read")
        self._pause_s = REFRESH_INTERVAL_S
        policy.bans = found.bans
        if found.version == version:
            return
        self._version = found.version
        for first in range(0, len(found.bans), MAX_BANS_PER_TURN):
            for each in found.bans.all[first : first + MAX_BANS_PER_TURN]:
                self._node.enforce_ban(each)
            await self._runtime.sleep(0)


class _Found(NamedTuple):
    version: bytes
    bans: BanList


def _read(source: BanSource, version: bytes | None, known: BanList, now: Callable[[], float]) -> _Found:
    """Return the bans in the table; if it has not changed, those of the known ones that have not ended.

    A large table takes a tenth of a second, in which other tasks get turns. No connection is kept for the
    minute until the next read.
    """
    try:
        table = source.read(version)
    finally:
        source.close()
    at = now()  # after the answer, so that no ban ends early
    if table is None:
        ended = any(each.ends_at <= at for each in known.all)
        return _Found(version or b"", BanList(e for e in known.all if e.ends_at > at) if ended else known)
    return _Found(table.version, BanList(_bans(table, at)))


def _bans(table: BanSnapshot, at: float) -> Iterator[Ban]:
    pacer = Pacer()
    for each in table.bans:
        pacer.note()
        ends_at = math.inf if each.until_ms is None else at + (each.until_ms - table.now_ms) / 1000
        yield Ban(each.uid, each.device, ends_at, each.reason)
