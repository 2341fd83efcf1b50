"""A real engine with registry and wheel, driven by bytes: time, sockets, outbox, requests.

It does the work of a transport and the ticker, compares each answer with the specification, and records the
last activity of sessions, so that an early end is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from unittest import mock

from presence.common.clock import Clock
from presence.core import expiry
from presence.core.admission import Admission, AdmissionLimits, PacketRate
from presence.core.changes import Change, Op
from presence.core.engine import Engine
from presence.core.flap_damping import FlapDamping
from presence.core.login import NO_LIMIT, LoginPolicy, SessionQuota
from presence.core.registry import Link, Peer, Registry, Session
from presence.core.requests import Message, Request
from presence.core.server_protocol import Outcome
from presence.core.sessions import Sessions
from presence.core.slots import SLOTS_PER_TICK, SlotClock
from presence.core.stall_guard import StallGuard
from presence.protocol import Code, ConnectionState, Kind, Packet
from tests.fuzz import foresight
from tests.fuzz.gate import GOOD, WALL_S, is_good, make_authenticator
from tests.fuzz.ledger import Ledger

# Short times: the wheel's ring is small, and few decisions lead from one deadline to the next.
IDLE_TIMEOUT_S: Final = 4.0
MIN_IDLE_TIMEOUT_S: Final = 2.0
MAX_IDLE_TIMEOUT_S: Final = 8.0
TICK_S: Final = 1.0
SLOT_S: Final = TICK_S / SLOTS_PER_TICK
GRACE_S: Final = 1.5
MAX_GRACE_S: Final = 6.0
AWAY_AFTER_S: Final = 3.0
LOGIN_TIMEOUT_S: Final = 5.0
FLAPPERS_MAX: Final = 3
START_S: Final = 1000.0
FEW_LOGINS: Final = AdmissionLimits(
    login_rate=1.0,
    login_burst=6.0,
    address_login_rate=0.5,
    address_login_burst=4.0,
    uid_login_rate=0.5,
    uid_login_burst=2.0,
)
FEW_PACKETS: Final = (1.0, 6.0)  # per second, and burst
ROUNDING_S: Final = 0.000501  # changes have whole milliseconds
ADDRESSES: Final = ("192.0.2.1", "2001:db8::/64", "")

FEW_EXPIRED: Final = 2  # sessions in a batch: so few that some have to wait for the next one


class Scene(NamedTuple):
    """The settings of the server."""

    grace: bool = True
    away: bool = False
    limit: SessionQuota = NO_LIMIT
    returns: int = 0
    served: bool = True
    is_tight: bool = False  # low limits of logins, packets and token checks
    authenticator: bool = False
    credit: bool = True


@dataclass
class LastActivity:
    """The last sign of life of a live session, the credits until then, and when it was lost."""

    at: float
    credited: float
    lost_at: float | None = None
    expires_at: float | None = None


class FakeRequestHandler:
    """Takes requests, and keeps them with their sessions until they are answered."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Session, Request]] = []
        self.left_by: set[int] = set()

    def handle(self, session: Session, request: Request) -> None:
        """See `presence.core.requests.RequestHandler`."""
        assert session.link is not None or isinstance(request, Message)
        self.waiting.append((session, request))

    def drained(self, session: Session) -> None:
        """See `presence.core.requests.RequestHandler`."""
        assert session.link is not None

    def sight_changed(self, session: Session) -> None:
        """See `presence.core.requests.RequestHandler`."""

    def session_disconnected(self, session: Session) -> None:
        """See `presence.core.requests.RequestHandler`."""
        assert session.number not in self.left_by, "a session disconnects twice"
        self.left_by.add(session.number)


class ServerUnderTest(Link):
    """The server and its connections: numbers, each with bytes that are not read yet.

    Args:
        scene: its settings.

    Attributes:
        peers: of the open connections.
        arrived: bytes that were not read yet.
        needs_a_turn, lain_s: the results of `poll_now` and `receive_queue_age_s`.
        activity: the last activity of live sessions, by id.
    """

    def __init__(self, scene: Scene) -> None:
        self.now = START_S
        self.scene = scene
        self.clock = Clock(lambda: self.now, lambda: WALL_S)
        self.ticks = SlotClock(SLOT_S, self.now)
        self.guard = StallGuard(TICK_S, IDLE_TIMEOUT_S, self.now)
        self.registry = Registry("boot", self.clock)
        self.ledger = Ledger()
        self.request_handler = FakeRequestHandler()
        self.peers: dict[int, Peer] = {}
        self.arrived: dict[int, bytes] = {}
        self.opened = 0
        self.needs_a_turn = False
        self.lain_s = 0.0
        self.activity: dict[str, LastActivity] = {}
        self.credited = 0.0
        self.tick = self.ticks.at_or_before(self.now)
        limits = FEW_LOGINS if scene.is_tight else AdmissionLimits()
        grace = GRACE_S if scene.grace else 0.0
        self.authenticator = (
            make_authenticator(self.clock, is_poor=scene.is_tight) if scene.authenticator else None
        )
        self.engine = Engine(
            Sessions(
                self.registry,
                self.ticks,
                self.now,
                idle_timeout=IDLE_TIMEOUT_S,
                max_idle_timeout=MAX_IDLE_TIMEOUT_S,
                away_after=AWAY_AFTER_S if scene.away else 0.0,
            ),
            LoginPolicy(
                self.registry,
                _clamped,
                LOGIN_TIMEOUT_S,
                Admission(limits, self.clock),
                session_limit=scene.limit,
                authenticator=self.authenticator,
            ),
            self,
            guard=self.guard,
            clock=self.clock,
            disconnect_grace=grace,
            flap_damping=FlapDamping(grace, scene.returns, MAX_GRACE_S, size=FLAPPERS_MAX),
            packet_rate=PacketRate(*FEW_PACKETS) if scene.is_tight else None,
        )
        if scene.served:
            self.engine.request_handler = self.request_handler

    def collect_expired(self) -> bool:
        """Collect a small batch of due sessions."""
        with mock.patch.object(expiry, "MAX_EXPIRED_PER_TURN", FEW_EXPIRED):
            return self.engine.collect_expired(self.tick)

    # The outbox

    def append(self, change: Change) -> None:
        """Take a change, and check that it is not early."""
        if change.op is Op.END:
            self._ends(change)
        elif change.op is Op.LOGIN and (entry := self.ledger.entries.get((change.uid, change.device))):
            del self.activity[entry.session]
        self.ledger.append(change)
        if change.op is Op.LOGIN:
            self.activity[change.session] = LastActivity(self.now, self.credited)

    def _ends(self, change: Change) -> None:
        last = self.activity.pop(change.session)
        entry = self.ledger.entries[change.uid, change.device]
        if change.code == Code.IDLE_TIMEOUT:
            assert last.lost_at is None
            assert self.now >= last.at + entry.timeout_s - ROUNDING_S, "ended as idle too early"
        elif change.code in (Code.CLOSED, Code.AUTH_EXPIRED) and self.scene.grace:
            assert last.lost_at is not None
            earliest = min(last.at + entry.timeout_s, last.lost_at + GRACE_S)
            assert self.now >= earliest - ROUNDING_S, "ended within its grace period"

    # Link

    def hang_up(self, handle: int, farewell: bytes | bytearray) -> None:
        """See `presence.core.registry.Link`."""
        (goodbye,) = foresight.packets(farewell)
        assert goodbye.kind == Kind.GOODBYE
        # A session of a stopping server has no grace period but its whole idle time-out to return.
        self._gone(handle, is_lost=goodbye.payload["code"] != Code.SERVER_DRAIN)

    def send(self, handle: int, data: bytes) -> None:
        """See `presence.core.registry.Link`."""
        assert isinstance(self.peers[handle], Session)
        foresight.packets(data)

    def try_send(self, handle: int, data: bytes) -> bool:
        """See `presence.core.registry.Link`."""
        self.send(handle, data)
        return True

    def poll_now(self, handle: int) -> bool:
        """See `presence.core.registry.Link`."""
        if not self.needs_a_turn:
            self.read(handle)
        return not self.needs_a_turn

    def receive_queue_age_s(self, handle: int, now: float) -> float:
        """See `presence.core.registry.Link`."""
        return self.lain_s

    def certificate(self, handle: int) -> None:
        """See `presence.core.registry.Link`."""

    # The work of a transport

    def connect(self) -> int:
        """Accept a connection."""
        handle = self.opened
        self.opened += 1
        self.peers[handle] = self.engine.opened(self, handle, ADDRESSES[handle % len(ADDRESSES)])
        self.arrived[handle] = b""
        return handle

    def read(self, handle: int) -> None:
        """Read what has arrived, and process it."""
        data, self.arrived[handle] = self.arrived[handle], b""
        if not data:
            return
        peer = self.peers[handle]
        was = ConnectionState.LOGGED_IN if isinstance(peer, Session) else ConnectionState.CONNECTED
        before = peer.partial or b""
        packets = self._packets()
        if self.authenticator is not None:
            self.authenticator.granted = None
        outcome = self.engine.received(peer, data)
        if outcome.failure is not None:
            raise outcome.failure
        compared = foresight.compare(
            before + data, was, outcome, self._packets() - packets, served=self.scene.served
        )
        self.peers[handle] = outcome.peer
        self._note(outcome, compared)
        if outcome.end_code is not None:
            self._gone(handle)
        self.engine.dispatch_requests(outcome)

    def _note(self, outcome: Outcome, compared: foresight.AnsweredBytes) -> None:
        """Record a sign of life."""
        if compared.login is not None and compared.answer is not None:
            self._check_login(compared.login, compared.answer, outcome.peer)
        last = self._activity_of(outcome.peer)
        if last is None:
            return
        if compared.signs:
            last.at, last.credited = self.now, self.credited
        if self.authenticator is not None and self.authenticator.granted is not None:
            last.expires_at = self.authenticator.granted.expires_at

    def _packets(self) -> int:
        """Return how many valid packets the engine has counted."""
        counters = self.engine.statistics()
        return counters.beats + counters.frames

    def _check_login(self, login: Mapping[str, Any], answer: Packet, peer: Peer) -> None:
        """Check that valid tokens, and no others, are admitted if tokens are required."""
        token, uid = login.get("token"), login.get("uid")
        wall = WALL_S + (self.now - START_S)
        is_proved = (
            uid is not None if self.authenticator is None else is_good(token, uid, self.authenticator, wall)
        )
        if isinstance(peer, Session):
            assert is_proved, "admitted without a valid token"
            assert peer.uid == (GOOD[str(token)].uid if uid is None else uid)
        elif answer.payload["code"] == Code.AUTH_FAILED:
            assert not is_proved, "a valid token is refused"

    def _activity_of(self, peer: Peer) -> LastActivity | None:
        return self.activity.get(self.registry.session_id(peer)) if isinstance(peer, Session) else None

    def _gone(self, handle: int, *, is_lost: bool = True) -> None:
        peer = self.peers.pop(handle)
        del self.arrived[handle]
        if is_lost and (last := self._activity_of(peer)) is not None:
            last.lost_at = self.now

    def lose(self, handle: int) -> None:
        """The client's end of the connection was read."""
        peer = self.peers[handle]
        if (last := self._activity_of(peer)) is not None:
            last.lost_at = self.now  # before the end that it may cause immediately
        self.engine.closed(peer)
        self._gone(handle)

    def beat(self, handles: list[int]) -> None:
        """Deliver plain keepalives of the connections that can have sent one."""
        able: list[Any] = [self.peers[handle] for handle in handles if not self.arrived[handle]]
        able = [peer for peer in able if peer.partial is None]
        self.engine.keepalives_received(able)
        for peer in able:
            last = self._activity_of(peer)
            assert last is not None
            last.at, last.credited = self.now, self.credited

    def leave(self) -> None:
        """Release everything: collecting the cycles would take much of the time."""
        vars(self).clear()

    # The work of the ticker

    def begin_tick(self) -> None:
        """Do the work before sessions are ended."""
        self.guard.loop_ran(self.now)
        credit = self.guard.take_credit(self.now) if self.scene.credit else 0.0
        self.ticks.credit(credit)
        self.credited += credit
        self.tick = max(self.tick, self.ticks.at_or_before(self.now))

    def run_tick(self) -> None:
        """Tick now."""
        self.begin_tick()
        while self.collect_expired():
            self.engine.expire_idle(self.now)
        self.engine.tick_done(self.now)
        assert all(session in self.registry for session in self.engine.registration._stale)


def _clamped(wish: float | None) -> float:
    return IDLE_TIMEOUT_S if wish is None else min(max(wish, MIN_IDLE_TIMEOUT_S), MAX_IDLE_TIMEOUT_S)
