"""The server: wires all services together, starts them, and drains them.

Start: Redis first, because a server that cannot report presence is of no use; then the services and the
listeners. Stop: accepting and the tick end, every client gets a goodbye with a return time of its own,
connections drain, and the outbox gets the remaining time. No user goes offline by it: their records stay in
Redis, and they have the lease plus T to log in elsewhere.
"""

import math
import select
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

import structlog
import trio

from presence.common import networks
from presence.common.clock import Clock
from presence.common.runtime import TrioRuntime
from presence.config.settings import Settings
from presence.core.registry import ConnectionInfo, Handle, Session
from presence.messaging.router import MessageRouter
from presence.server import drain, listeners, redis_setup
from presence.server.answer_queue import AnswerQueue
from presence.server.ban_enforcer import BanEnforcer
from presence.server.control_listener import ControlListener
from presence.server.credentials import Credentials
from presence.server.node_assembly import Node, Stores
from presence.server.question_answers import QuestionAnswers
from presence.server.readiness import Readiness
from presence.server.rebalancer import Rebalancer
from presence.server.refusal_log import log_refusal
from presence.server.request_router import RequestRouter
from presence.server.server_statistics import ServerStatistics, ServerTransport
from presence.server.stats_socket import RequestHandlers, StatsResponder
from presence.store.answers import AnswerKeys
from presence.store.ban_table import BanTable
from presence.store.control_channel import ControlChannel
from presence.store.redis_store import Deliveries
from presence.store.room_reads import StoredRooms
from presence.store.roster_table import StoredRosters
from presence.store.watch_reads import StoredStates
from presence.transports import trio_transport
from presence.transports.accept_rotation import AcceptRotation
from presence.transports.epoll_transport import EpollTransport
from presence.transports.limits import DRAIN_TIMEOUT_S, Limits
from presence.transports.tls import TlsListening
from presence.transports.trio_transport import StreamTransport
from presence.transports.websocket_head import WebSocketListening, origins_of
from presence.watching.watch_service import Watching

REPORT_INTERVAL_S: Final = 60.0
BATCH_WINDOW_S: Final = 0.1  # of keepalives without a reply: a wake-up costs as much CPU as fifty of them
MAX_WINDOW_SHARE: Final = 0.25  # of a tick, so that expirations are on time
CONNECTIONS_INTERVAL_S: Final = 0.02  # between two checks whether all connections have drained
STOP_RESERVE_S: Final = 0.5  # of the drain time-out: to leave, end tasks and write the last log line
LEAVE_RESERVE_S: Final = 0.2  # of that
LEAVE_TIMEOUT_S: Final = 2.0  # for two calls to Redis, after one that may be in progress

log = structlog.get_logger("presence.server.server")


class Server:
    """One worker: a node with its transport and services.

    Args:
        settings: checked settings.
        redis_url: where Redis is; `settings.redis`, or the embedded server's.
        max_connections: most open connections.
        clock: monotonic time.
        family: what the node ids of all workers on one port begin with; "" for a single server.
        stats_socket: the worker's end; the admin process has the other. None: there is none.
        worker: the worker's number, from 1; 0 for a single server.

    Attributes:
        node: the core of the server and its link to Redis.
        stopped: whether `stop` has drained it.
        websocket_address: where it serves WebSocket, once it serves; None if it does not.

    Raises:
        CredentialsError: keys or certificate cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str,
        max_connections: int,
        clock: Clock,
        *,
        family: str = "",
        stats_socket: socket.socket | None = None,
        worker: int = 0,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._redis_url = redis_url
        self._shares_port = bool(family)
        self._worker = worker
        self._redis = ExitStack()  # closes all connections to Redis
        self._transport: ServerTransport | None = None  # until it is started, last of all
        self._credentials = Credentials(settings, clock)
        self.node = self._build_node(max_connections, family)
        self._watching = self._build_watching()
        profiles = self.node.engine.registry.profiles
        self.node.relay.is_hurried = lambda: self._watching.is_used or profiles.in_rooms > 0
        self._answers = self._build_answers()
        self._answer_queue = self._build_answer_queue()
        self._router = self._build_router()
        self.node.engine.request_handler = RequestRouter(
            self._watching, self._router.submit, self._router.confirmed_by_client, self.node.faults
        )
        self.node.engine.on_refusal = log_refusal
        self._bans = self._build_ban_enforcer()
        self._rebalancer = Rebalancer(self.node.engine, clock, TrioRuntime())
        self._control = self._build_control_listener()
        self._followups = redis_setup.scheduler(redis_url, settings, self.node.keys)
        self._rooms = redis_setup.projector(redis_url, settings, self.node.keys)
        self._stats_responder = self._build_stats_responder(stats_socket)
        self._statistics = self._build_statistics()
        self._serving: trio.CancelScope | None = None
        self._ticking = trio.CancelScope()
        self._answering_stats = trio.CancelScope()
        self._reload_requested = TrioRuntime().wake_event()
        self.stopped = False
        self.websocket_address: listeners.ListenAddress | None = None

    def _build_node(self, max_connections: int, family: str) -> Node:
        stores = redis_setup.redis_stores(self._redis_url, self.settings)
        for each in stores:
            self._redis.enter_context(closing(each))
        node = Node(
            self.settings,
            max_connections,
            Stores(*stores),
            self.clock,
            TrioRuntime(),
            family=family,
            describe=lambda: self._statistics.description(),  # noqa: PLW0108 - made after the node
            authenticator=self._credentials.authenticator,
            certificates=self._credentials.client_identities,
        )
        # No deadline is set yet. Slots begin where those of trio's clock do, as heartbeats: one wake.
        slots = node.slot_clock
        slots.credit(-(trio.current_time() % slots.slot_s))
        return node

    def _build_watching(self) -> Watching:
        retention_ms = redis_setup.retention_ms(self.settings)
        states = StoredStates(self._redis_url, self.node.keys, retention_ms=retention_ms)
        self._redis.enter_context(closing(states))
        rosters = StoredRosters(self._redis_url, self.node.keys)
        self._redis.enter_context(closing(rosters))
        rooms = StoredRooms(self._redis_url, self.node.keys)
        self._redis.enter_context(closing(rooms))
        return redis_setup.watching(self._redis_url, self.node, states, rosters, rooms)

    def _build_answers(self) -> QuestionAnswers:
        return QuestionAnswers(
            self.node.engine,
            self.clock,
            node=self._node_id,
            pending_changes=lambda: self.node.outbox.pending,
            connected=self._connected,
            watching=self._watching,
            ended=self.node.recent_ends.of_user,
        )

    def _build_answer_queue(self) -> AnswerQueue:
        answer_keys = AnswerKeys(self._redis_url, self.node.keys)
        return AnswerQueue(
            self._answers.by_kind,
            self._redis.enter_context(closing(answer_keys)),
            self.clock,
            TrioRuntime(),
            node=self._node_id,
            faults=self.node.faults,
        )

    def _build_router(self) -> MessageRouter:
        deliveries = Deliveries(self._redis_url, redis_setup.shape(self.settings))
        return MessageRouter(
            self.node.engine.registry,
            self.node.keys.shard,
            self._redis.enter_context(closing(deliveries)),
            self.clock,
            TrioRuntime(),
            node=self._node_id,
            ends_at=self.node.engine.sessions.ends_at,
            report=self._answer_queue.report,
            faults=self.node.faults,
        )

    def _build_ban_enforcer(self) -> BanEnforcer:
        table = BanTable(self._redis_url, self.node.keys)
        return BanEnforcer(
            self.node,
            self._redis.enter_context(closing(table)),
            self.clock,
            TrioRuntime(),
            self._address_of,
        )

    def _build_control_listener(self) -> ControlListener:
        channel = ControlChannel(self._redis_url, self.node.keys, rooms=self.settings.rooms != "off")
        return ControlListener(
            self.node,
            self._redis.enter_context(closing(channel)),
            self._router.deliver,
            self._answer_queue.answer,
            self._bans.refresh_soon,
            on_confirmations=self._router.confirmed_by_nodes,
            on_orders=self._rebalancer.obey,
            on_rosters=self._watching.rosters_changed,
            on_rooms=self._watching.rooms_changed,
        )

    def _build_stats_responder(self, stats_socket: socket.socket | None) -> StatsResponder | None:
        if stats_socket is None:
            return None
        functions = {kind.value: function for kind, function in self._answers.by_kind.items()}
        handlers: RequestHandlers = {"sample": self.sample, **functions}
        return StatsResponder(stats_socket, handlers, self.node.faults)

    def _build_statistics(self) -> ServerStatistics:
        return ServerStatistics(
            self.node,
            self._router,
            self._watching,
            self._answer_queue,
            self._credentials,
            rebalancer=self._rebalancer,
            followups=self._followups,
            rooms=self._rooms,
            stats_responder=self._stats_responder,
            transport=lambda: self._transport,
            worker=self._worker,
        )

    async def serve(self, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; report the address once Redis was reached and connections are accepted.

        Raises:
            StoreUnavailable, StoreMismatch, StoreError: the first contact with Redis failed.
            CannotListen: an address cannot be listened on.
        """
        try:
            await self._serve(task_status)
        finally:
            self._redis.close()

    async def _serve(self, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        await redis_setup.wait_for_redis(self.node, self._redis_url, self.settings)
        await self._bans.refresh()
        with self.node.faults.contained("token keys"):
            await self._credentials.prepare()
        listening = listeners.open_listeners(self.settings, shared=self._shares_port)
        host, port = listening.address
        async with trio.open_nursery() as nursery:
            self._serving = nursery.cancel_scope
            for service in self._services():
                nursery.start_soon(service)
            self._start_transport(nursery, listening)
            self._statistics.address = f"{host}:{port}"
            self.node.declared_readiness = Readiness.READY
            log.info("serving", host=host, port=port, node=self.node.relay.node)
            if (secured := listening.secured_address) is not None:
                log.info("serving TLS", host=secured.host, port=secured.port)
            self.websocket_address = listening.websocket_address
            if (websocket := self.websocket_address) is not None:
                log.info("serving websocket", host=websocket.host, port=websocket.port)
            task_status.started((host, port))

    def _services(self) -> list[Callable[[], Awaitable[object]]]:
        """Return the tasks beside the transport, each of which runs until it is cancelled or stopped."""
        services: list[Callable[[], Awaitable[object]]] = [
            self.node.relay.run,
            self.node.cluster.run,
            self._control.run,
            self._bans.run,
            self._rebalancer.run,
            self._router.run,
            self._answer_queue.run,
            self._watching.run,
            self._report,
            partial(self._credentials.run, self.node.faults),
            self._reload_on_request,
            self._tick,
        ]
        if self._followups is not None:
            services.append(self._followups.run)
        if self._rooms is not None:
            services.append(self._rooms.run)
        if self._stats_responder is not None:
            services.append(partial(self._answer_stats, self._stats_responder))
        return services

    def reload(self) -> None:
        """Request that the files be read again whose content may change while the server runs."""
        self._reload_requested.set()

    def retire(self) -> None:
        """Stop answering the admin process, because a successor does."""
        self._answering_stats.cancel()

    async def stop(self) -> int:
        """Drain; return the number of changes left in the outbox. `serve` returns soon after."""
        deadline = trio.current_time() + max(0.0, self.settings.drain_timeout - STOP_RESERVE_S)
        self.node.declared_readiness = Readiness.DRAINING
        sessions = len(self.node.engine.registry)
        self._ticking.cancel()  # from here on, silence is caused by this server and not by clients
        if self._followups is not None:
            self._followups.stop()  # other nodes run the scheduler
        if self._rooms is not None:
            self._rooms.stop()  # and the projector
        if self._transport is not None:
            return_after = drain.return_delays(self.settings, sessions)
            self.node.engine.refuse_logins(return_after)  # also for connections that are not accepted yet
            await self._transport.stop_accepting()
            with trio.move_on_at(deadline):
                await drain.say_goodbyes(self.node.engine, return_after)
                self._control.stop()
                sending_s = len(self.node.engine.registry) / drain.GOODBYES_PER_S
                with trio.move_on_after(DRAIN_TIMEOUT_S + 0.2 + sending_s):
                    while self._transport.statistics().connections:  # noqa: ASYNC110 - once, at the end
                        await trio.sleep(CONNECTIONS_INTERVAL_S)
        left = 0
        if self._serving is not None:
            left = await self.node.relay.drain(deadline - trio.current_time())
            if not left:  # else other nodes must treat this one as dead, and sweep what it could not report
                timeout_s = min(LEAVE_TIMEOUT_S, deadline - trio.current_time() + LEAVE_RESERVE_S)
                await self.node.leave(sessions, timeout_s)
            self._serving.cancel()
        self.stopped = True
        return left

    def report(self) -> dict[str, object]:
        """Return all counters, for the log."""
        return self._statistics.report()

    def sample(self) -> dict[str, object]:
        """Return all figures of this moment, for operators."""
        return self._statistics.sample()

    def _node_id(self) -> str:
        return self.node.relay.node

    def _connected(self, handle: Handle) -> ConnectionInfo | None:
        return self._transport.connected(handle) if self._transport else None

    def _address_of(self, session: Session) -> str:
        connected = self._connected(session.handle)
        return "" if connected is None else connected.address

    async def _tick(self) -> None:
        with self._ticking:
            await self.node.ticker.run()

    async def _answer_stats(self, responder: StatsResponder) -> None:
        with self._answering_stats:
            await responder.run()

    async def _reload_on_request(self) -> None:
        while True:
            if await self._reload_requested.wait(math.inf):
                with self.node.faults.contained("files"):
                    await self._credentials.reload()
                    log.info("files reloaded")

    def _start_transport(self, nursery: trio.Nursery, listening: listeners.Listeners) -> None:
        """Serve all connections over epoll; where the system has none, over streams."""
        limits = Limits(self.settings.login_timeout, self.settings.unsent_bytes)
        tls = None
        if self._credentials.certificate is not None:
            tls = TlsListening(listening.secured, self._credentials.certificate)
        websocket = None
        if listening.websocket:
            websocket = WebSocketListening(listening.websocket, origins_of(self.settings.allowed_origins))
        if hasattr(select, "epoll"):
            window_s = min(BATCH_WINDOW_S, self.settings.tick * MAX_WINDOW_SHARE)
            rotation = None
            if self._worker and self.settings.workers > 1:
                rotation = AcceptRotation(listening.all, self._worker - 1, self.settings.workers, self.clock)
            epoll = EpollTransport(
                self.node.engine,
                listening.plain,
                limits,
                self.node.admission,
                window_s=window_s,
                clock=self.clock,
                tls=tls,
                websocket=websocket,
                proxies=networks.parse(self.settings.proxy_from or ""),
                rotation=rotation,
            )
            self._transport = epoll
            nursery.start_soon(epoll.run)
        else:
            streams = StreamTransport(self.node.engine, limits, self.node.admission, tls, websocket)
            self._transport = streams
            nursery.start_soon(streams.run, trio_transport.listening(listening.plain))

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_INTERVAL_S)
            with self.node.faults.contained("statistics"):
                log.info("statistics", **self._statistics.summary())
                log.debug("all statistics", **self.report())
