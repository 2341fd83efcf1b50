"""A node without sockets: the real core, ticker, outbox, relay and store, and sessions made in process."""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

import protocol
from presence.admission import Admission, AdmissionLimits
from presence.changes import Change
from presence.clock import Clock
from presence.core import Core
from presence.embedded import embedded_redis
from presence.outbox import Outbox
from presence.registry import Registry, Session
from presence.relay import Relay, Verdicts
from presence.resync import Parted
from presence.session import SessionProtocol
from presence.store.client import forget_prefix
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.ticker import Ticker
from presence.ticks import SLOTS_PER_TICK, StallGuard, Ticks

TICK_S: Final = 1.0
LOGINS_A_TURN: Final = 64
_STREAM_MAXLEN: Final = 10_000_000  # nothing is trimmed while it is counted
_SEEN_RETENTION_MS: Final = 7 * 86_400_000


class _NoSocket:
    """A `Link` on which nothing ever arrives."""

    def hang_up(self, handle: Any, farewell: bytes) -> None:
        """There is nobody."""

    def look(self, handle: Any) -> bool:
        """Nothing waits."""
        return True

    def unread_s(self, handle: Any) -> float:
        """Nothing lay."""
        return 0.0


class Node:
    """One node on one Redis, wired as `presence.server` wires it.

    Args:
        redis_url: where Redis is.
        keys: names and shards.
        sessions: how many will come; bounds outbox and logins.
        idle_timeout: T, seconds.
    """

    def __init__(self, redis_url: str, keys: Keys, sessions: int, idle_timeout: float = 30.0) -> None:
        clock = Clock()
        now = clock.now()
        ticks = Ticks(TICK_S / SLOTS_PER_TICK, now)
        guard = StallGuard(TICK_S, idle_timeout, now)
        boot_id = secrets.token_hex(6)
        self.keys = keys
        self.outbox = Outbox(keys.shard, keys.shards, max_items=max(100_000, 2 * sessions))
        self._snapshot: Parted | None = None
        self.registry = Registry(boot_id, clock)
        admission = Admission(AdmissionLimits(sessions, sessions, sessions, sessions, 2 * sessions), now)
        rules = SessionProtocol(self.registry, clock, lambda _wish: idle_timeout, 10.0, admission)
        self.core = Core(
            self.registry,
            rules,
            self.outbox,
            ticks=ticks,
            guard=guard,
            clock=clock,
            idle_timeout=idle_timeout,
            disconnect_grace=0.0,
            max_idle_timeout=idle_timeout,
        )
        self.ticker = Ticker(self.core, ticks, guard, clock, credit=False)  # while it does not run, all live
        self.relay = Relay(
            self.outbox,
            RedisStore(redis_url, Shape(keys, _STREAM_MAXLEN, _SEEN_RETENTION_MS)),
            node=f"node-{boot_id}",
            live=self._live,
            verdicts=Verdicts(
                lambda _sessions: None, lambda _sessions: None, lambda: f"node-{secrets.token_hex(6)}"
            ),
            alive=lambda _node: False,
            clock=clock.now,
        )

    def _live(self, shard: int) -> Iterable[Change]:
        if self._snapshot is None or not self._snapshot.has(shard):
            self._snapshot = Parted(self.core.registrations(), self.keys.shard, self.keys.shards)
        return self._snapshot.of(shard)

    async def log_in(self, uids: Iterable[str]) -> list[Session]:
        """Log users in, with a turn for the relay now and then, and wait until Redis has them."""
        link, sessions = _NoSocket(), []
        for number, uid in enumerate(uids):
            peer = self.core.received(
                self.core.opened(link, number), protocol.encode(protocol.login(uid))
            ).peer
            if not isinstance(peer, Session):
                raise TypeError("a login was refused")
            sessions.append(peer)
            if number % LOGINS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
        await self.settled()
        return sessions

    async def settled(self) -> None:
        """Wait until Redis has acknowledged every change."""
        if await self.relay.drain(trio.current_time() + 120):
            raise TimeoutError("Redis does not take the changes")


@contextmanager
def redis_for(url: str, keys: Keys) -> Iterator[str]:
    """Give the URL of a Redis: `url`, cleared of that prefix, or a private server's if it is empty."""
    if not url:
        with embedded_redis() as embedded:
            yield embedded.url
        return
    forget_prefix(url, keys.prefix)
    try:
        yield url
    finally:
        forget_prefix(url, keys.prefix)
