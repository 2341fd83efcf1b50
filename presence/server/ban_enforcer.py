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
from presence.common.networks import network_of
from presence.common.outage import Outage
from presence.common.runtime import Runtime
from presence.core.ban_list import AddressBan, Ban, BanList
from presence.core.registry import Session
from presence.server.node_assembly import Node
from presence.store.ban_table import BanSnapshot

REFRESH_INTERVAL_S: Final = 60.0  # in case a message was missed, as in a failover that lost the last writes
MIN_INTERVAL_S: Final = 0.25  # between two reads,
IDLE_FACTOR: Final = 3.0  # or so many times what the last one took, if that is longer,
MAX_INTERVAL_S: Final = 0.75  # but no more, so that a ban takes effect within a second
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 2.0
MAX_BANS_PER_TURN: Final = 256  # of which hardly any has a session here
MAX_SESSIONS_PER_TURN: Final = 256  # whose addresses are looked up, some 3 us each

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
        address_of: returns the address of a connected session's client, as limits count it; "" if unknown.
    """

    def __init__(
        self,
        node: Node,
        source: BanSource,
        clock: Clock,
        runtime: Runtime,
        address_of: Callable[[Session], str] = lambda _session: "",
    ) -> None:
        self._node = node
        self._address_of = address_of
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
        for first in range(0, len(found.bans.all), MAX_BANS_PER_TURN):
            for each in found.bans.all[first : first + MAX_BANS_PER_TURN]:
                self._node.enforce_ban(each)
            await self._runtime.sleep(0)
        before = {each.network for each in known.addresses}
        if new := [each for each in found.bans.addresses if each.network not in before]:
            await self._enforce_on_addresses(BanList(addresses=new))

    async def _enforce_on_addresses(self, bans: BanList) -> None:
        """End the sessions from addresses whose bans are new; there will be no more of them."""
        registry = self._node.engine.registry
        sessions = list(registry)
        for first in range(0, len(sessions), MAX_SESSIONS_PER_TURN):
            now = self._clock.now()
            for session in sessions[first : first + MAX_SESSIONS_PER_TURN]:
                if session.transport is None or session not in registry:
                    continue
                if (ban := bans.find_address(self._address_of(session), now)) is not None:
                    self._node.enforce_address_ban(session, ban)
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
        bans = [each for each in known.all if each.ends_at > at]
        addresses = [each for each in known.addresses if each.ends_at > at]
        ended = len(bans) + len(addresses) < len(known)
        return _Found(version or b"", BanList(bans, addresses) if ended else known)
    return _Found(table.version, BanList(_bans(table, at), _address_bans(table, at)))


def _bans(table: BanSnapshot, at: float) -> Iterator[Ban]:
    pacer = Pacer()
    for each in table.bans:
        pacer.note()
        yield Ban(each.uid, each.device, _ends_at(each.until_ms, table, at), each.reason)


def _address_bans(table: BanSnapshot, at: float) -> Iterator[AddressBan]:
    pacer = Pacer()
    for each in table.addresses:
        pacer.note()
        yield AddressBan(network_of(each.address), _ends_at(each.until_ms, table, at), each.reason)


def _ends_at(until_ms: int | None, table: BanSnapshot, at: float) -> float:
    """Return the monotonic time of an end by Redis' clock."""
    return math.inf if until_ms is None else at + (until_ms - table.now_ms) / 1000
