"""A node without sockets: the real core, ticker, outbox, relay and store, and sessions made in process."""

from collections.abc import Iterable
from itertools import count
from typing import Any, Final

import trio

import presence.server.node_assembly
from presence import protocol
from presence.common.clock import Clock
from presence.common.runtime import TrioRuntime
from presence.config.settings import Settings
from presence.core.registry import Session
from presence.store.keys import Keys
from presence.store.redis_store import RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape

TICK_S: Final = 1.0
LOGINS_PER_TURN: Final = 64
_STREAM_MAXLEN: Final = 10_000_000  # nothing is trimmed while it is counted
_SEEN_RETENTION_MS: Final = 7 * 86_400_000


class _NoSocket:
    """A `Transport` on which nothing ever arrives."""

    def disconnect(self, handle: Any, farewell: bytes) -> None:
        pass

    def send(self, handle: Any, data: bytes) -> None:
        pass

    def try_send(self, handle: Any, data: bytes) -> bool:
        return True

    def poll_now(self, handle: Any) -> bool:
        return True

    def receive_queue_age_s(self, handle: Any, now: float) -> float:
        return 0.0

    def address(self, handle: Any) -> str:
        return "127.0.0.1"

    def acknowledged_bytes(self, handle: Any) -> tuple[int, int] | None:
        return None

    def certificate(self, handle: Any) -> None:
        return None


class InProcessNode(presence.server.node_assembly.Node):
    """One node on one Redis, whose users log in by a call; there is no grace.

    Args:
        sessions: how many there will be; bounds outbox and logins.
        idle_timeout: T, seconds.
        rooms: the setting.
    """

    def __init__(
        self, redis_url: str, keys: Keys, sessions: int, idle_timeout: float = 30.0, rooms: str = "off"
    ) -> None:
        settings = Settings(
            prefix=keys.prefix,
            shards=keys.shards,
            tick=TICK_S,
            idle_timeout=idle_timeout,
            max_idle_timeout=idle_timeout,
            disconnect_grace=0.0,
            login_timeout=10.0,
            login_rate=sessions,
            rooms=rooms,
        )
        shape = Shape(keys, _STREAM_MAXLEN, _SEEN_RETENTION_MS)
        stores = presence.server.node_assembly.Stores(
            relay=RedisStore(redis_url, shape),
            cluster=RedisStore(redis_url, shape),
            leases=RedisLeaseTable(redis_url, keys, settings.lease),
        )
        super().__init__(settings, sessions, stores, Clock(), TrioRuntime())
        self.ticker.credit = False  # while it does not run, all live
        self._handles = count()

    def begin_session(self, uid: str, rooms: Iterable[str] | None = None) -> Session:
        """Log a user in."""
        packet = protocol.encode(protocol.login(uid, rooms=rooms))
        client = self.engine.received(self.engine.opened(_NoSocket(), next(self._handles)), packet).client
        if not isinstance(client, Session):
            raise TypeError("a login was refused")
        return client

    async def log_in(self, uids: Iterable[str], rooms: Iterable[str] | None = None) -> list[Session]:
        """Log users in, with turns for the relay in between, and wait until Redis has them."""
        sessions = []
        for number, uid in enumerate(uids):
            sessions.append(self.begin_session(uid, rooms))
            if number % LOGINS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        await self.settled()
        return sessions

    async def settled(self) -> None:
        if await self.relay.drain(120):
            raise TimeoutError("Redis does not take the changes")
