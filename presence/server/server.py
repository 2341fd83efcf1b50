"""The server, wired: the only file that knows everybody.

Start: Redis first (a server that cannot tell anybody of what it sees is of no use), then the tick, the
relay and the listeners. Stop: accepting ends and the tick stops, every client is told goodbye with its
own time to return, connections drain, and the outbox has what is left of the time. Nothing is declared
about the users: their records wait for them, for they have the lease and T to come back.
"""

import math
import os
import random
import select
import socket
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

import structlog
import trio

from presence import __version__, protocol
from presence.common import networks
from presence.common.clock import Clock
from presence.common.errors import StoreUnavailable
from presence.common.faults import Faults
from presence.common.redis_url import redacted
from presence.common.runtime import TrioRuntime
from presence.config.settings import Settings
from presence.core.registry import ConnectionInfo, Session
from presence.core.requests import Message, Request
from presence.followups.task import SchedulerTask
from presence.followups.turning import FollowUpScheduler
from presence.messaging.router import MessageRouter
from presence.protocol import Code
from presence.server import listeners
from presence.server.control import ControlListener
from presence.server.credentials import Credentials
from presence.server.node import Node, Stores
from presence.server.process_stats import ProcessStats
from presence.server.session_report import SessionReporter
from presence.server.stats_socket import SAMPLE_VERSION, Answers, ExplainResponder, Readiness, StatsResponder
from presence.server.ticker import watch_lag
from presence.store import privileges
from presence.store.ask_nodes import AnswerKeys
from presence.store.keys import Keys
from presence.store.redis_store import Deliveries, RedisLeaseTable, RedisStore
from presence.store.script_arguments import Shape
from presence.store.snapshots import StoredStates
from presence.store.subscription import ControlChannel, WatchChannel
from presence.transports.epoll import EpollTransport
from presence.transports.limits import DRAIN_S, Limits
from presence.transports.stream import StreamTransport
from presence.transports.tls import TlsListening
from presence.watching.service import Watching


@dataclass(eq=False, repr=False)
class FrontDesk:
    """See `presence.core.requests.RequestHandler`."""

    watching: Watching  # serves queries, watches and unwatches
    carry: Callable[[Session, Message], None]  # serves messages
    faults: Faults  # contains mistakes where no request is at hand that could be refused

    def take(self, session: Session, request: Request) -> None:
        """See `presence.core.requests.RequestHandler`."""
        if isinstance(request, Message):
            self.carry(session, request)
        else:
            self.watching.take(session, request)

    def drained(self, session: Session) -> None:
        """See `presence.core.requests.RequestHandler`."""
        with self.faults.contained("push", partial(self.faults.disconnect, session)):
            self.watching.drained(session)

    def left(self, session: Session) -> None:
        """See `presence.core.requests.RequestHandler`."""
        with self.faults.contained("watch"):
            self.watching.left(session)


PATIENCE_S: Final = 5.0  # a Redis that loads its data is waited for; the answer is due within 10 s
RETRY_S: Final = 0.25

log = structlog.get_logger("presence.server.server")


async def first_contact(node: Node, redis_url: str, settings: Settings) -> None:
    """Return once the node knows its Redis.

    Raises:
        StoreUnavailable, StoreMismatch, StoreError: it is not there, not ours, or lacks rights for us.
    """
    give_up = trio.current_time() + PATIENCE_S
    told = False
    while True:
        try:
            rights = await _look_at_rights(node, redis_url, settings)
            await node.start()
        except StoreUnavailable as error:
            if trio.current_time() > give_up:
                raise
            if not told:
                log.warning("waiting for Redis", redis=redacted(redis_url), error=str(error))
                told = True
            await trio.sleep(RETRY_S)
        else:
            break
    if rights.too_much:
        log.warning("Redis user has excess permissions", permissions=rights.too_much)
    if rights.no_events and not settings.no_admin:
        log.warning("Redis user cannot read events", fix=rights.no_events)


async def _look_at_rights(node: Node, redis_url: str, settings: Settings) -> privileges.Rights:
    """Return what the user may do; nothing is said of our own Redis, where it may do all."""
    if settings.redis is None:
        return privileges.Rights([], "")
    followups = settings.followups is not None
    look = partial(privileges.look, redis_url, node.keys, followups=followups)
    return await trio.to_thread.run_sync(look, abandon_on_cancel=True)


log = structlog.get_logger("presence.server.server")

REPORT_INTERVAL_S = 60.0
GOODBYES_A_TURN = 256
RETURN_SPREAD_S = 2.0  # the shortest span over which clients of a stopping server are asked to return
RETURNS_PER_S = 2000  # and the rate that longer ones are made for
FAREWELLS_PER_S = 4000  # half of what the transport says without hurry
STOP_RESERVE_S = 0.5  # of the drain time-out, for leaving, ending tasks and writing the last log line
LEAVE_RESERVE_S = 0.2  # of that
LEAVE_TIMEOUT_S = 2.0  # for two calls to Redis, after one that may be under way


@dataclass(eq=False, repr=False)
class Server:
    """One worker: transports and node.

    Raises:
        CredentialsError: keys or certificate cannot be used.
    """

    settings: Settings  # checked settings
    redis_url: str  # where Redis is; `settings.redis`, or the embedded server's
    max_connections: InitVar[int]  # at once
    clock: Clock  # monotonic time
    _: KW_ONLY
    family: str = ""  # what the node ids of all workers on one port begin with; "" for a server on its own
    line: InitVar[socket.socket | None] = None  # its end of the line to whoever serves operators
    worker: int = 0  # the worker's number, from 1; 0 of a server on its own

    def __post_init__(self, max_connections: int, line: socket.socket | None) -> None:
        settings, redis_url, clock = self.settings, self.redis_url, self.clock
        self._footprint = ProcessStats()
        self._address = ""
        self._started_ms = clock.seen_ms(clock.now())
        self._credentials = Credentials(settings, clock)
        scripted = _scripted(redis_url, settings)
        stores = Stores(*scripted)
        self.node = Node(
            settings,
            max_connections,
            stores,
            clock,
            TrioRuntime(),
            family=self.family,
            describe=self._describe,
            gate=self._credentials.gate,
        )
        deliveries = Deliveries(redis_url, _shape(settings))
        self._courier = MessageRouter(
            self.node.core.sessions,
            self.node.keys.shard,
            deliveries,
            clock,
            TrioRuntime(),
            node=lambda: self.node.relay.node,
            ends_at=self.node.core.ends_at,
            faults=self.node.faults,
        )
        states = StoredStates(redis_url, self.node.keys)
        self._watching = _watching(redis_url, settings, self.node.keys, states, self.node.faults)
        self._explaining = SessionReporter(
            self.node.core,
            clock,
            node=lambda: self.node.relay.node,
            waiting=lambda: self.node.outbox.held,
            connected=self._connected,
            watches=self._watching.watches,
            ended=self.node.lately.of,
        )
        answer_keys = AnswerKeys(redis_url, self.node.keys)
        self._answering = ExplainResponder(
            self.explain,
            answer_keys,
            clock,
            TrioRuntime(),
            node=lambda: self.node.relay.node,
            faults=self.node.faults,
        )
        channel = ControlChannel(redis_url, self.node.keys)
        shut = [each.shut for each in (*scripted, deliveries, answer_keys, channel)]
        self._shut_redis: list[Callable[[], None]] = [*shut, states.close]
        self._control = ControlListener(self.node, channel, self._courier.deliver, self._answering.take)
        self.node.core.desk = FrontDesk(self._watching, self._courier.take, self.node.faults)
        self._limits = Limits(settings.login_timeout, settings.unsent_bytes, settings.unsent_timeout)
        self._serving: trio.CancelScope | None = None
        self._ticking = trio.CancelScope()
        self._answering_operators = trio.CancelScope()
        self._asked_to_read = TrioRuntime().bell()
        self._followups = _turning(redis_url, settings, self.node.keys)
        self._transport: EpollTransport | StreamTransport | None = None
        answers: Answers = {"sample": self.sample, "explain": self.explain}
        self._inquiries = StatsResponder(line, answers, self.node.faults) if line is not None else None
        self.stopped = False

    async def serve(self, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; tells the address once connections are accepted and Redis was reached.

        Raises:
            StoreUnavailable, StoreMismatch, StoreError: the first contact with Redis failed.
            CannotListen: an address cannot be listened on.
        """
        try:
            await self._serve(task_status)
        finally:
            for shut in self._shut_redis:
                shut()

    async def _serve(self, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        await first_contact(self.node, self.redis_url, self.settings)
        listening = listeners.listening(self.settings, shared=bool(self.family))
        host, port = listening.address
        async with trio.open_nursery() as nursery:
            self._serving = nursery.cancel_scope
            nursery.start_soon(self.node.relay.run)
            nursery.start_soon(self.node.cluster.run)
            nursery.start_soon(self._control.run)
            nursery.start_soon(self._courier.run)
            nursery.start_soon(self._answering.run)
            nursery.start_soon(self._watching.run)
            nursery.start_soon(self._report)
            nursery.start_soon(watch_lag, self.node.delays.loop_lag, self.clock, TrioRuntime())
            nursery.start_soon(self._credentials.run, self.node.faults)
            nursery.start_soon(self._read_again)
            if self._followups is not None:
                nursery.start_soon(self._followups.run)
            if self._inquiries is not None:
                nursery.start_soon(self._answer_operators, self._inquiries)
            nursery.start_soon(self._tick)
            self._start_transport(nursery, listening)
            self._address = f"{host}:{port}"
            self.node.readiness_told = Readiness.READY
            log.info("serving", host=host, port=port, node=self.node.relay.node)
            if (secured := listening.secured_address) is not None:
                log.info("serving TLS", host=secured.host, port=secured.port)
            task_status.started((host, port))

    def reload(self) -> None:
        """Have the files read again whose content may change while the server runs; soon."""
        self._asked_to_read.ring()

    def retire(self) -> None:
        """Another worker has this one's place, and answers operators."""
        self._answering_operators.cancel()

    async def stop(self) -> int:
        """Drain; return how many changes are left in the outbox. `serve` returns soon after."""
        deadline = trio.current_time() + max(0.0, self.settings.drain_timeout - STOP_RESERVE_S)
        self.node.readiness_told = Readiness.DRAINING
        sessions = len(self.node.core.sessions)
        self._ticking.cancel()  # from here on silence is nobody's fault but ours
        if self._followups is not None:
            self._followups.stop()  # others turn
        if self._transport is not None:
            return_after = self._returns()
            self.node.core.refuse_logins(return_after)  # those who wait to be accepted among them
            await self._transport.stop_accepting()
            with trio.move_on_at(deadline):
                await self._say_goodbye(return_after)
                self._control.stop()
                with trio.move_on_after(DRAIN_S + 0.2 + len(self.node.core.sessions) / FAREWELLS_PER_S):
                    while self._transport.statistics().connections:  # noqa: ASYNC110 - once, at the end
                        await trio.sleep(0.02)
        left = 0
        if self._serving is not None:
            left = await self.node.relay.drain(deadline - trio.current_time())
            if not left:  # else it ends as one that dies: others have to sort out what it could not tell
                timeout_s = min(LEAVE_TIMEOUT_S, deadline - trio.current_time() + LEAVE_RESERVE_S)
                await self.node.leave(sessions, timeout_s)
            self._serving.cancel()
        self.stopped = True
        return left

    def report(self) -> dict[str, object]:
        """Return all figures, for the log."""
        transport = asdict(self._transport.statistics()) if self._transport else {}
        turning = {"followups": self._followups.report()} if self._followups is not None else {}
        messages = asdict(self._courier.statistics())
        return {
            **self.node.report(),
            "transport": transport,
            "messages": messages,
            "watching": self._watching.report(),
            "answering": asdict(self._answering.statistics),
            **self._credentials.report(),
            **turning,
        }

    def summary(self) -> dict[str, object]:
        """Return the figures that a person reads, for the log; those of `report` are for programs."""
        node, core = self.node, self.node.core.statistics()
        ticker, outbox = node.ticker.statistics(), node.outbox.statistics()
        return {
            "node": node.relay.node,
            "readiness": node.readiness().value,
            "connections": self._transport.statistics().connections if self._transport else 0,
            "sessions": core.sessions,
            "logins": core.logins,
            "refused": sum(core.refused.values()),
            "ended": sum(core.ended.values()),
            "keepalives": core.beats,
            "waiting_for_redis": outbox.held,
            "dropped": outbox.dropped_total,
            "latest_tick_s": round(ticker.overrun_max_s, 3),
            "stalled_s": round(ticker.stalled_s, 1),
        }

    def sample(self) -> dict[str, object]:
        """Return all figures of this moment, for operators; see `presence.server.stats_socket`."""
        described = {"node": self.node.relay.node, **self.node.description()}
        asked = self._inquiries
        return {
            "v": SAMPLE_VERSION,
            "worker": self.worker,
            "at_ms": self.clock.seen_ms(self.clock.now()),
            **described,
            **self.report(),
            **self.node.operators_report(),
            "process": self._footprint.report(described["connections"]),
            "inquiries": {"asked": asked.asked if asked else 0, "dropped": asked.dropped if asked else 0},
        }

    def explain(self, uid: str) -> dict[str, object]:
        """Return what this worker knows of a user's sessions; see `presence.server.session_report`."""
        return self._explaining.explain(uid)

    def _connected(self, handle: Any) -> ConnectionInfo | None:
        return self._transport.connected(handle) if self._transport else None

    def _describe(self) -> dict[str, Any]:
        connections = self._transport.statistics().connections if self._transport else 0
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "address": self._address,
            "version": __version__,
            "started_ms": self._started_ms,
            "connections": connections,
        }

    async def _tick(self) -> None:
        with self._ticking:
            await self.node.ticker.run()

    async def _answer_operators(self, inquiries: StatsResponder) -> None:
        with self._answering_operators:
            await inquiries.run()

    async def _read_again(self) -> None:
        while True:
            if await self._asked_to_read.wait(math.inf):
                with self.node.faults.contained("files"):
                    await self._credentials.reload()
                    log.info("files reloaded")

    def _start_transport(self, nursery: trio.Nursery, listening: listeners.Listeners) -> None:
        """All over epoll; where the system has none, over streams."""
        tls = None
        if self._credentials.certificate is not None:
            handshakes = self.settings.tls_handshakes
            tls = TlsListening(listening.secured, self._credentials.certificate, handshakes)
        if hasattr(select, "epoll"):
            window_s = self.settings.batch_window_ms / 1000
            epoll = EpollTransport(
                self.node.core,
                listening.plain,
                self._limits,
                self.node.admission,
                window_s=window_s,
                clock=self.clock,
                tls=tls,
                proxies=networks.parse(self.settings.proxy_from or ""),
            )
            self._transport = epoll
            nursery.start_soon(epoll.run)
        else:
            streams = StreamTransport(self.node.core, self._limits, self.node.admission, tls)
            self._transport = streams
            sockets = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in listening.plain]
            nursery.start_soon(streams.run, sockets)

    def _returns(self) -> Callable[[], float]:
        """Return what names the seconds after which a client may return, spread over all clients."""
        spread_s = max(RETURN_SPREAD_S, len(self.node.core.sessions) / RETURNS_PER_S)
        # Whoever comes back later than that may have been told about already.
        limit_s = (self.settings.lease + self.settings.idle_timeout) / 2
        if spread_s > limit_s:
            log.warning("reconnect window shorter than capacity allows", spread_s=limit_s)
            spread_s = limit_s
        return lambda: round(random.uniform(0.1, spread_s), 2)  # noqa: S311 - spreads load, no secret

    async def _say_goodbye(self, return_after: Callable[[], float]) -> None:
        def goodbye() -> bytes:
            return protocol.encode(protocol.goodbye(Code.SERVER_DRAIN, retry_after=return_after()))

        remaining = iter(list(self.node.core.sessions))
        while turn := list(islice(remaining, GOODBYES_A_TURN)):
            self.node.core.endings.farewell(turn, goodbye)
            await trio.lowlevel.checkpoint()

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_INTERVAL_S)
            with self.node.faults.contained("statistics"):
                log.info("statistics", **self.summary())
                log.debug("all statistics", **self.report())


def _turning(url: str, settings: Settings, keys: Keys) -> SchedulerTask | None:
    """Return what turns the wheel of follow-ups; None where the settings have no rules."""
    if settings.followups is None:
        return None
    kept = settings.stream_maxlen
    turner = FollowUpScheduler(url, keys.prefix, settings.followups, shards=keys.shards, kept=kept)
    return SchedulerTask(turner)


def _watching(url: str, settings: Settings, keys: Keys, states: StoredStates, faults: Faults) -> Watching:
    return Watching(
        keys.shard,
        lambda shard: WatchChannel(url, keys, shard),
        states,
        max_watches=settings.max_watches,
        max_shared_watches=settings.max_shared_watches,
        absence_s=settings.lease + settings.idle_timeout,
        faults=faults,
    )


def _scripted(url: str, settings: Settings) -> tuple[RedisStore, RedisStore, RedisLeaseTable]:
    """Return what the relay and the cluster call, each over connections of its own, and the leases."""
    shape = _shape(settings)
    leases = RedisLeaseTable(url, shape.keys, settings.lease)
    return RedisStore(url, shape), RedisStore(url, shape), leases


def _shape(settings: Settings) -> Shape:
    return Shape(
        Keys(settings.prefix, settings.shard_count, settings.database),
        maxlen=settings.stream_maxlen,
        seen_retention_ms=settings.seen_retention_days * 86_400_000,
        max_sessions=settings.max_sessions,
        session_policy=settings.session_policy,
    )
