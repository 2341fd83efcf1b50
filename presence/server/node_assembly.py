"""A node without its sockets: core, ticker, outbox, relay and lease renewal, wired together.

A worker process is a node. Its stores, clock and runtime are passed in, so that the simulation runs the same
nodes as `presence serve`.
"""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from presence.cluster.lease_renewal import LeaseRenewal
from presence.cluster.lease_table import LeaseTable
from presence.common import files
from presence.common.clock import Clock
from presence.common.faults import Faults
from presence.common.histogram import Histogram, LatencyHistograms, detection_bounds
from presence.common.networks import network_text
from presence.common.runtime import Runtime
from presence.common.text import printable
from presence.config.settings import Settings
from presence.core.admission import Admission, AdmissionLimits, PacketRate
from presence.core.authenticator import Authenticator, CertificateAuthenticator
from presence.core.ban_list import AddressBan, Ban
from presence.core.changes import SessionName
from presence.core.engine import Engine
from presence.core.flap_damping import FlapDamping
from presence.core.login_policy import LoginPolicy, SessionQuota
from presence.core.profiles import Profile
from presence.core.registry import Registry, Session, SessionKey
from presence.core.server_protocol import ServerProtocol
from presence.core.sessions import Sessions
from presence.core.slots import SLOTS_PER_TICK, SlotClock
from presence.core.stall_guard import StallGuard
from presence.core.visibility import Visibility
from presence.outbox.pending_ages import PendingAges
from presence.outbox.queue import Outbox
from presence.outbox.reconciler import LocalSessions
from presence.outbox.relay import Relay, RelayCallbacks
from presence.outbox.replies import NodeNotice, NodeNoticeKind, Superseded
from presence.outbox.store import Store
from presence.protocol import Code
from presence.server.readiness import Readiness
from presence.server.recent_ends import RecentEnds
from presence.server.resync_registrations import SharedRegistrations
from presence.server.ticker import Ticker
from presence.store.control_messages import BanNotice, Erasure
from presence.store.keys import Keys

OUTBOX_MIN_ITEMS = 100_000
OUTBOX_ITEMS_PER_CONNECTION = 2  # a login and an end
OUTBOX_BYTES_PER_ITEM = 512  # texts of 200 characters; 40 are usual
# Bursts in seconds of their rates: after an outage of a server or a network, clients return together.
LOGIN_BURST_S = 4.0
NAMED_BURST_S = 100.0  # of one address or one user, whose clients share the network that failed
PACKET_BURST_S = 10.0
ACCEPTS_PER_LOGIN = 2.0  # a client may need a second attempt, and health checks do not log in
MAX_LOGGED_CHARS = 200  # of a caller's own description, in a log line
MAX_LOGGED_UIDS = 10

_log = structlog.get_logger(__name__)


def outbox_items(max_connections: int) -> int:
    """Return how many changes of one worker may wait for Redis."""
    return max(OUTBOX_MIN_ITEMS, OUTBOX_ITEMS_PER_CONNECTION * max_connections)


def _admission_limits(settings: Settings, max_connections: int) -> AdmissionLimits:
    return AdmissionLimits(
        max_connections,
        accept_rate=ACCEPTS_PER_LOGIN * settings.login_rate,
        accept_burst=LOGIN_BURST_S * settings.login_rate,
        login_rate=settings.login_rate,
        login_burst=LOGIN_BURST_S * settings.login_rate,
        address_connections=settings.address_connections,
        address_login_rate=settings.address_login_rate,
        address_login_burst=NAMED_BURST_S * settings.address_login_rate,
        uid_login_rate=settings.uid_login_rate,
        uid_login_burst=NAMED_BURST_S * settings.uid_login_rate,
        max_refused_open=files.spare_connections(max_connections),
    )


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a node, each with a connection of its own, so that a slow sweep delays no event."""

    relay: Store
    cluster: Store
    leases: LeaseTable


class Node:
    """Everything of a server but its sockets.

    A change of a session takes this way: `engine`, `recent_ends`, `outbox`, `relay`, Redis.

    Args:
        settings: checked settings.
        max_connections: most open connections.
        stores: used by this node only.
        clock: monotonic time.
        runtime: where its tasks run.
        family: what the node ids of all workers on one port begin with; "" for a single server.
        token: makes the unique part of a node id.
        describe: returns the description of the process for `presence nodes`; JSON values.
        authenticator: checks tokens; None: they are not checked.
        certificates: finds the users of client certificates; None: clients have none.
        max_changes: that may wait for Redis; 0: see `outbox_items`.

    Attributes:
        keys: names of keys in Redis, and the shard of each user.
        delays: latencies that this node measures.
        declared_readiness: READY and DRAINING are set by the owner of the node.
        slot_clock: the slots of the timing wheel.
        renamed: rung when `relay.node` is about to change.
        redis_changed: rung when Redis has first answered, has lost writes, or is another server now.
        outbox: changes that wait for Redis.
        recent_ends: ends of sessions, kept for operators.
        admission: limits connections and logins.
        engine: decides about connections and sessions.
        faults: contains errors in work for a single client.
        ticker: the task that ends silent sessions.
        relay: the task that brings changes to Redis, and has this node's id.
        cluster: the task that renews the lease, and has dead nodes fenced and swept.
    """

    def __init__(
        self,
        settings: Settings,
        max_connections: int,
        stores: Stores,
        clock: Clock,
        runtime: Runtime,
        *,
        family: str = "",
        token: Callable[[], str] = lambda: secrets.token_hex(6),
        describe: Callable[[], dict[str, Any]] = dict,
        authenticator: Authenticator | None = None,
        certificates: CertificateAuthenticator | None = None,
        max_changes: int = 0,
    ) -> None:
        now = clock.now()
        self.settings = settings
        self.clock = clock
        self._family = family
        self._token = token
        self._describe = describe
        self.keys = Keys(settings.prefix, settings.shard_count, settings.database)
        self.delays = LatencyHistograms(Histogram(detection_bounds(settings.tick)))
        self.declared_readiness = Readiness.STARTING
        self.renamed = runtime.wake_event()
        self.redis_changed = runtime.wake_event()
        self.slot_clock = SlotClock(settings.tick / SLOTS_PER_TICK, now)
        self._guard = StallGuard(settings.tick, settings.idle_timeout, now)
        self._pending_ages = PendingAges(lambda: clock.decided_ms(clock.now()), self.delays.outbox_age)
        self.outbox = self._build_outbox(max_changes or outbox_items(max_connections))
        self.recent_ends = RecentEnds(self.outbox)
        self.admission = Admission(_admission_limits(settings, max_connections), clock)
        boot_id = token()
        self.engine = self._build_engine(Registry(boot_id, clock), authenticator, certificates)
        self.faults = Faults(self.engine.disconnect_after_failure)
        self.ticker = self._build_ticker(runtime)
        self._registrations = SharedRegistrations(self.engine, self.keys, clock)
        self.relay = self._build_relay(stores.relay, self._node_id(boot_id), runtime)
        self.cluster = self._build_cluster(stores, runtime)

    def _build_outbox(self, max_items: int) -> Outbox:
        return Outbox(
            self.keys.shard,
            self.settings.shard_count,
            max_items=max_items,
            max_bytes=OUTBOX_BYTES_PER_ITEM * max_items,
            ages=self._pending_ages,
        )

    def _build_engine(
        self,
        registry: Registry,
        authenticator: Authenticator | None,
        certificates: CertificateAuthenticator | None,
    ) -> Engine:
        settings, clock = self.settings, self.clock
        sessions = Sessions(
            registry,
            self.slot_clock,
            clock.now(),
            idle_timeout=settings.idle_timeout,
            max_idle_timeout=settings.max_idle_timeout,
            away_after=settings.away_after,
        )
        login_policy = LoginPolicy(
            registry,
            settings.clamp_idle_timeout,
            settings.login_timeout,
            self.admission,
            session_limit=SessionQuota(settings.max_sessions, settings.session_policy == "newest"),
            class_limits={
                name: SessionQuota(most, policy == "newest")
                for name, (most, policy) in settings.class_limits.items()
            },
            authenticator=authenticator,
            certificates=certificates,
        )
        visibility = None
        if authenticator is not None and settings.visibility == "claims":
            visibility = Visibility(authenticator, clock.now)
        return Engine(
            sessions,
            login_policy,
            ServerProtocol(checks_tokens=authenticator is not None),
            self.recent_ends,
            guard=self._guard,
            clock=clock,
            disconnect_grace=settings.disconnect_grace,
            flap_damping=FlapDamping(settings.disconnect_grace),
            packet_rate=PacketRate(settings.packet_rate, PACKET_BURST_S * settings.packet_rate),
            detection_delay=self.delays.detection_delay,
            visibility=visibility,
            records_addresses=settings.event_address,
            rooms=settings.rooms,
        )

    def _build_ticker(self, runtime: Runtime) -> Ticker:
        return Ticker(
            self.engine.expiry,
            self.engine.slot_done,
            self.slot_clock,
            self._guard,
            self.clock,
            runtime=runtime,
            tick_lags=self.delays.tick_lag,
            loop_lags=self.delays.loop_lag,
        )

    def _build_relay(self, store: Store, node: str, runtime: Runtime) -> Relay:
        """Return the relay, which asks `cluster` about other nodes from its first contact with Redis on."""
        return Relay(
            self.outbox,
            store,
            node=node,
            live=self._registrations.of_shard,
            callbacks=RelayCallbacks(
                self._end_superseded, self.apply_notices, self._new_id, self.redis_changed.set
            ),
            local_sessions=LocalSessions(
                self.engine.registration.registrable_sessions, self._current_profile
            ),
            is_alive=lambda node: self.cluster.is_alive(node),  # noqa: PLW0108 - made after the relay
            lease_holders=lambda: self.cluster.lease_holders(),  # noqa: PLW0108 - as above
            clock=self.clock.now,
            runtime=runtime,
            latencies=self.delays,
        )

    def _build_cluster(self, stores: Stores, runtime: Runtime) -> LeaseRenewal:
        return LeaseRenewal(
            self.relay,
            stores.leases,
            stores.cluster,
            lease_s=self.settings.lease,
            idle_timeout_s=self.settings.idle_timeout,
            is_healthy=self._is_healthy,
            describe=lambda: {**self.description(), "settings": self.settings.shared},
            clock=self.clock.now,
            runtime=runtime,
            latencies=self.delays,
        )

    async def start(self) -> None:
        """Make the first contact with Redis.

        Raises:
            StoreUnavailable, StoreMismatch, StoreError: it failed.
        """
        await self.relay.start()
        await self.cluster.start()

    async def leave(self, sessions: int, timeout_s: float) -> None:
        """Report to other nodes that this node has drained; afterwards it writes nothing more to Redis.

        Args:
            sessions: their number when the drain began.
            timeout_s: for the call to Redis.
        """
        await self.cluster.leave(self.clock.seen_ms(self.clock.now()), sessions, timeout_s)

    def readiness(self) -> Readiness:
        if self.declared_readiness is Readiness.READY:
            if self.relay.is_fenced:
                return Readiness.FENCED
            renewed_at = self.cluster.statistics().renewed_at
            if renewed_at is not None and self.clock.now() - renewed_at > self.settings.lease:
                return Readiness.REDIS_AWAY
        return self.declared_readiness

    def description(self) -> dict[str, Any]:
        """Return the description that is stored with the lease."""
        return {
            **self._describe(),
            "readiness": self.readiness().value,
            "sessions": len(self.engine.registry),
            "outbox": self.outbox.pending,
        }

    def report(self) -> dict[str, object]:
        """Return all counters, for the log."""
        ticker = self.ticker.statistics()
        return {
            "readiness": self.readiness().value,
            "core": asdict(self.engine.statistics()),
            "admission": asdict(self.admission.statistics()),
            "ticker": asdict(ticker),
            "tick_overrun_max_ms": round(ticker.overrun_max_s * 1000, 3),
            "outbox": asdict(self.outbox.statistics()),
            "faults": dict(self.faults.counts),
            **self._redis_report(),
        }

    def _redis_report(self) -> dict[str, object]:
        """Return the state of relay and lease renewal; times are seconds from now, for other clocks."""
        now, relay, cluster = self.clock.now(), self.relay.statistics(), self.cluster.statistics()
        away_s = 0.0 if relay.away_since is None else now - relay.away_since
        renewed_at = cluster.renewed_at
        lease_left_s = None if renewed_at is None else self.settings.lease - (now - renewed_at)
        return {
            "relay": {**asdict(relay), "away_s": away_s},
            "cluster": {**asdict(cluster), "lease_left_s": lease_left_s},
        }

    def admin_report(self) -> dict[str, object]:
        """Return what only operators see."""
        return {
            "transitions": self.relay.transitions.report(),
            "wheel": self.engine.sessions.upcoming_expirations(self.clock.now()),
            "histograms": self.delays.report(),
            "outbox_oldest_s": self._pending_ages.oldest_s(),
        }

    def _node_id(self, own: str) -> str:
        return f"node-{self._family}-{own}" if self._family else f"node-{own}"

    def _new_id(self) -> str:
        self.cluster.run_soon()
        self.renamed.set()
        return self._node_id(self._token())

    def _is_healthy(self) -> bool:
        """Whether connections were read or a tick ran a moment ago, which the lease asserts.

        A draining node no longer ticks, and keeps its lease until its outbox is empty.
        """
        if self.declared_readiness is Readiness.DRAINING:
            return True
        return self.clock.now() - self._guard.last <= 2 * self.settings.tick

    # Decisions of Redis and of other nodes

    def _current_profile(self, name: SessionName) -> Profile | None:
        sessions = self.engine.registry
        session = sessions.get(_key(name.uid, name.device))
        is_it = session is not None and sessions.session_id(session) == name.session
        return sessions.profiles.get(session.number) if session is not None and is_it else None

    def _end_superseded(self, sessions: Iterable[Superseded]) -> None:
        for each in sessions:
            self.engine.terminator.supersede(
                _key(each.uid, each.device), each.session, _goodbye(each.return_allowed)
            )

    def apply_notices(self, notices: Iterable[NodeNotice]) -> None:
        """Apply notices about sessions of this node; those about sessions that have ended are skipped."""
        for each in notices:
            with self.faults.contained("notice"):
                self._apply_notice(each)

    def _apply_notice(self, each: NodeNotice) -> None:
        key = _key(each.uid, each.device)
        if each.kind is NodeNoticeKind.KICKED:
            if self.engine.terminator.kick(key, each.session):
                session, by = each.session, _loggable(each.by)
                _log.info("session kicked", uid=each.uid, device=each.device, session=session, by=by)
        elif each.kind is NodeNoticeKind.LIMITED:
            self.engine.terminator.limit(key, each.session, may_return=each.return_allowed)
        elif each.kind is NodeNoticeKind.PRIVACY:
            self.engine.registry.note_privacy(key, each.session, each.privacy)
        else:
            self.engine.terminator.supersede(key, each.session, _goodbye(each.return_allowed))

    def log_erasures(self, erasures: Iterable[Erasure]) -> None:
        """Log that users were forgotten; no session changes, because they are offline."""
        for each in erasures:
            uids = [_loggable(uid) for uid in each.uids[:MAX_LOGGED_UIDS]]
            _log.info("users forgotten", users=each.users, uids=uids, by=_loggable(each.by))

    def log_bans(self, notices: Iterable[BanNotice]) -> None:
        """Log that operators have banned users or addresses, or have lifted bans."""
        for each in notices:
            if each.addresses:
                addresses = [_loggable(address) for address in each.addresses[:MAX_LOGGED_UIDS]]
                event = "addresses unbanned" if each.lifted else "addresses banned"
                _log.info(event, addresses=addresses, by=_loggable(each.by))
                continue
            uids = [_loggable(uid) for uid in each.uids[:MAX_LOGGED_UIDS]]
            event = "users unbanned" if each.lifted else "users banned"
            _log.info(event, users=each.users, uids=uids, by=_loggable(each.by))

    def enforce_ban(self, ban: Ban) -> None:
        """End the sessions here that a ban forbids."""
        with self.faults.contained("notice"):
            for session in self.engine.terminator.ban(ban):
                device, name = session.device, self.engine.registry.session_id(session)
                _log.info("session banned", uid=ban.uid, device=device, session=name)

    def enforce_address_ban(self, session: Session, ban: AddressBan) -> None:
        """End a session whose connection comes from a banned address."""
        with self.faults.contained("notice"):
            name, network = self.engine.registry.session_id(session), network_text(ban.network)
            self.engine.terminator.end_banned(session, ban)
            _log.info("session banned", uid=session.uid, device=session.device, session=name, address=network)


def _loggable(text: str) -> str:
    """Return an unverified text from Redis, made safe for the log."""
    return printable(text[:MAX_LOGGED_CHARS]) or "unknown"


def _goodbye(return_allowed: bool) -> Code:
    return Code.CLOSED if return_allowed else Code.REPLACED


def _key(uid: str, device: str) -> SessionKey:
    return (uid, device) if device else uid
