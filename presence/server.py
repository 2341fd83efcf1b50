"""The server, wired: the only file that knows everybody.

Start: Redis first (a server that cannot tell anybody of what it sees is of no use), then the tick, the
relay and the listeners. Stop: accepting ends and the tick stops, every client is told goodbye with its
own time to return, connections drain, and the outbox has what is left of the time. Nothing is declared
about the users: their records wait for them, for they have the lease and T to come back.
"""

import math
import random
import secrets
import select
import socket
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import islice
from weakref import ref

import structlog
import trio

import protocol
from presence.admission import Admission, AdmissionLimits
from presence.changes import Change
from presence.clock import Clock
from presence.core import Core
from presence.outbox import Outbox
from presence.registry import Registry, SessionKey
from presence.relay import Relay, Verdicts
from presence.resync import Parted
from presence.session import SessionProtocol
from presence.settings import Settings
from presence.store.batches import Displaced, StoreUnavailable, Superseded
from presence.store.client import redacted
from presence.store.keys import Keys
from presence.store.packing import Shape
from presence.store.redis_store import RedisStore
from presence.ticker import Ticker
from presence.ticks import SLOTS_PER_TICK, StallGuard, Ticks
from presence.transports import tcp
from presence.transports.epoll import EpollTransport
from presence.transports.limits import DRAIN_S, Limits
from presence.transports.stream import StreamTransport
from protocol import Code

log = structlog.get_logger("presence.server")

REPORT_INTERVAL_S = 60.0
GOODBYES_A_TURN = 256
RETURN_SPREAD_S = 2.0  # the shortest span over which clients of a stopping server are asked to return
RETURNS_PER_S = 2000  # and the rate that longer ones are made for
REGISTRATIONS_FRESH_S = 0.05  # how long sorting them serves: the shards of one round are asked at once
FAREWELLS_PER_S = 4000  # half of what the transport says without hurry
OUTBOX_MIN_ITEMS = 100_000
STOP_RESERVE_S = 0.5  # of the drain time-out, for ending tasks and writing the last log line
START_PATIENCE_S = 6.0  # a Redis that loads its data is waited for; the answer is due within 10 s


class Server:
    """One worker: transports, core, ticker and relay.

    Args:
        settings: checked settings.
        redis_url: where Redis is; `settings.redis`, or the embedded server's.
        max_connections: connections at once.
        clock: monotonic time.
        family: what the node ids of all workers on one port begin with; "" for a server on its own.
    """

    def __init__(
        self, settings: Settings, redis_url: str, max_connections: int, clock: Clock, *, family: str = ""
    ) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._max_connections = max_connections
        self._clock = clock
        self.keys = Keys(settings.prefix, settings.shards)
        now = clock.now()
        ticks = Ticks(settings.tick / SLOTS_PER_TICK, now)
        guard = StallGuard(settings.tick, settings.idle_timeout, now)
        self.outbox = Outbox(
            self.keys.shard,
            settings.shards,
            max_items=settings.outbox_items or max(OUTBOX_MIN_ITEMS, 2 * max_connections),
        )
        self._family = family
        self._admission = Admission(
            AdmissionLimits(
                max_connections,
                settings.accept_rate,
                settings.accept_burst,
                settings.login_rate,
                settings.login_burst,
            ),
            now,
        )
        boot_id = secrets.token_hex(6)
        registry = Registry(boot_id, clock)
        self.core = Core(
            registry,
            SessionProtocol(
                registry, clock, settings.clamp_idle_timeout, settings.login_timeout, self._admission
            ),
            self.outbox,
            ticks=ticks,
            guard=guard,
            clock=clock,
            idle_timeout=settings.idle_timeout,
            disconnect_grace=settings.disconnect_grace,
            max_idle_timeout=settings.max_idle_timeout,
            look=settings.stall_guard,
        )
        self.ticker = Ticker(self.core, ticks, guard, clock, credit=settings.stall_guard)
        self.relay = Relay(
            self.outbox,
            RedisStore(
                redis_url,
                Shape(
                    self.keys,
                    maxlen=settings.stream_maxlen,
                    seen_retention_ms=settings.seen_retention_days * 86_400_000,
                ),
            ),
            node=self._node_id(boot_id),
            live=self._live,
            verdicts=Verdicts(self._superseded, self._displaced, lambda: self._node_id(secrets.token_hex(6))),
            # Without leases the other workers are known to be at work; another trace may be long gone.
            alive=lambda node: bool(family) and node.startswith(self._node_id("")),
            clock=clock.now,
        )
        self._limits = Limits(settings.login_timeout, settings.unsent_bytes, settings.unsent_timeout)
        self._serving: trio.CancelScope | None = None
        self._ticking = trio.CancelScope()
        self._transport: EpollTransport | StreamTransport | None = None
        # Whoever reads it keeps it: what nobody asks for is not kept until the next resync.
        self._snapshot: Callable[[], Parted | None] = lambda: None
        self._snapshot_at, self._snapshot_version = -math.inf, -1
        self.stopped = False

    async def serve(self, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; tells the address once connections are accepted and Redis was reached.

        Raises:
            StoreUnavailable, StoreMismatch, StoreError: the first contact with Redis failed.
            OSError: the address cannot be listened on.
        """
        await self._first_contact()
        shared = bool(self._family)
        listeners = tcp.open_listeners(self._settings.host, self._settings.port, shared=shared)
        host, port = listeners[0].getsockname()[:2]
        async with trio.open_nursery() as nursery:
            self._serving = nursery.cancel_scope
            nursery.start_soon(self.relay.run)
            nursery.start_soon(self._report)
            nursery.start_soon(self._tick)
            self._start_transport(nursery, listeners)
            log.info("serving", host=host, port=port, node=self.relay.node)
            task_status.started((host, port))

    async def stop(self) -> int:
        """Drain; return how many changes are left in the outbox. `serve` returns soon after."""
        deadline = trio.current_time() + max(0.0, self._settings.drain_timeout - STOP_RESERVE_S)
        self._ticking.cancel()  # from here on silence is nobody's fault but ours
        if self._transport is not None:
            return_after = self._returns()
            self.core.refuse_logins(return_after)  # those who wait to be accepted among them
            self._transport.stop_accepting()
            with trio.move_on_at(deadline):
                await self._say_goodbye(return_after)
                with trio.move_on_after(DRAIN_S + 0.2 + len(self.core.sessions) / FAREWELLS_PER_S):
                    while self._transport.statistics().connections:  # noqa: ASYNC110 - once, at the end
                        await trio.sleep(0.02)
        left = 0
        if self._serving is not None:
            left = await self.relay.drain(deadline)
            self._serving.cancel()
        self.stopped = True
        return left

    def report(self) -> dict[str, object]:
        """Return all figures, for the log."""
        ticker = self.ticker.statistics()
        return {
            "core": asdict(self.core.statistics()),
            "transport": asdict(self._transport.statistics()) if self._transport else {},
            "ticker": asdict(ticker),
            "tick_overrun_max_ms": round(ticker.overrun_max_s * 1000, 3),
            "outbox": asdict(self.outbox.statistics()),
            "relay": asdict(self.relay.statistics()),
        }

    def _node_id(self, own: str) -> str:
        return f"node-{self._family}-{own}" if self._family else f"node-{own}"

    async def _tick(self) -> None:
        with self._ticking:
            await self.ticker.run()

    async def _first_contact(self) -> None:
        give_up = trio.current_time() + START_PATIENCE_S
        told = False
        while True:
            try:
                await self.relay.start()
            except StoreUnavailable as error:
                if trio.current_time() > give_up:
                    raise
                if not told:
                    log.warning("waiting for Redis", redis=redacted(self._redis_url), error=str(error))
                    told = True
                await trio.sleep(0.25)
            else:
                return

    def _start_transport(self, nursery: trio.Nursery, listeners: list[socket.socket]) -> None:
        """Plain TCP over epoll; where the system has none, over streams."""
        if hasattr(select, "epoll"):
            window_s = self._settings.batch_window_ms / 1000
            epoll = EpollTransport(
                self.core, listeners, self._limits, self._admission, window_s=window_s, clock=self._clock
            )
            self._transport = epoll
            nursery.start_soon(epoll.run)
        else:
            streams = StreamTransport(self.core, self._limits, self._admission)
            self._transport = streams
            sockets = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in listeners]
            nursery.start_soon(streams.run, sockets)

    def _returns(self) -> Callable[[], float]:
        """Return what names the seconds after which a client may return, spread over all clients."""
        spread_s = max(RETURN_SPREAD_S, len(self.core.sessions) / RETURNS_PER_S)
        return lambda: round(random.uniform(0.1, spread_s), 2)  # noqa: S311 - spreads load, no secret

    async def _say_goodbye(self, return_after: Callable[[], float]) -> None:
        def goodbye() -> bytes:
            return protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=return_after()))

        remaining = iter(list(self.core.sessions))
        while turn := list(islice(remaining, GOODBYES_A_TURN)):
            self.core.farewell(turn, goodbye)
            await trio.lowlevel.checkpoint()

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_INTERVAL_S)
            log.info("statistics", **self.report())

    # What Redis decided

    def _live(self, shard: int) -> Iterable[Change]:
        """Registrations of a shard's sessions; all shards are asked in one go, so they share one pass."""
        now, version = self._clock.now(), self.core.sessions.version
        shared = self._snapshot()
        stale = version != self._snapshot_version or now - self._snapshot_at > REGISTRATIONS_FRESH_S
        if shared is None or stale or not shared.has(shard):
            shared = Parted(self.core.registrations(), self.keys.shard, self.keys.shards)
            self._snapshot = ref(shared)
            self._snapshot_at, self._snapshot_version = now, version
        return shared.of(shard)

    def _superseded(self, sessions: Iterable[Superseded]) -> None:
        for each in sessions:
            self.core.displace(_key(each.uid, each.device), each.session)

    def _displaced(self, sessions: Iterable[Displaced]) -> None:
        for each in sessions:
            code = Code.CLOSED if each.return_allowed else Code.REPLACED
            self.core.displace(_key(each.uid, each.device), each.session, code)


def _key(uid: str, device: str) -> SessionKey:
    return (uid, device) if device else uid
