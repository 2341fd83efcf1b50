"""A core with everything around it replaced by something small: time by hand, sockets of bytes, a list."""

from collections.abc import Callable, Mapping
from typing import Any

from presence import protocol
from presence.common.clock import Clock
from presence.common.histogram import Histogram
from presence.core.admission import Admission, AdmissionLimits, PacketRate
from presence.core.authenticator import Authenticator, CertificateAuthenticator
from presence.core.changes import Change, Op
from presence.core.engine import Engine
from presence.core.flap_damping import FlapDamping
from presence.core.login_policy import NO_LIMIT, LoginPolicy, SessionQuota
from presence.core.registry import Client, Guest, Registry, Session, SessionKey
from presence.core.server_protocol import ServerProtocol
from presence.core.sessions import Sessions
from presence.core.slots import SLOTS_PER_TICK, SlotClock
from presence.core.stall_guard import StallGuard
from presence.core.visibility import Visibility
from presence.protocol import Code, Decoder, Kind, Packet
from tests.support.state_table import brief

T = 30.0
TICK = 1.0
GRACE = 5.0
MAX_GRACE = 60.0
START = 1000.0
MIN_IDLE_TIMEOUT, MAX_IDLE_TIMEOUT = 5.0, 300.0


class FakeSockets:
    """A transport whose connections are numbers: bytes wait in them until they are read."""

    def __init__(self) -> None:
        self.engine: Engine
        self.clients: list[Client | None] = []
        self.waiting: list[bytes] = []
        self.sent: list[bytearray] = []
        self.failures: list[Exception] = []
        self.needs_a_turn = False
        self.lain_s = 0.0
        self.certificates: dict[int, bytes] = {}

    # Transport

    def disconnect(self, handle: int, farewell: bytes | bytearray) -> None:
        assert self.clients[handle] is not None, "disconnected twice"
        self.sent[handle] += farewell
        self.clients[handle] = None

    def send(self, handle: int, data: bytes) -> None:
        self.sent[handle] += data

    def try_send(self, handle: int, data: bytes) -> bool:
        self.send(handle, data)
        return True

    def poll_now(self, handle: int) -> bool:
        if not self.needs_a_turn:
            self.read(handle)
        return not self.needs_a_turn

    def receive_queue_age_s(self, handle: int, now: float) -> float:
        return self.lain_s

    def acknowledged_bytes(self, handle: int) -> tuple[int, int] | None:
        return None

    def certificate(self, handle: int) -> bytes | None:
        return self.certificates.get(handle)

    # What a transport does by itself

    def connect(self) -> int:
        handle = len(self.clients)
        self.clients.append(self.engine.opened(self, handle, "127.0.0.1"))
        self.waiting.append(b"")
        self.sent.append(bytearray())
        return handle

    def arrive(self, handle: int, data: bytes) -> None:
        """Bytes reach the socket; they are not read yet."""
        self.waiting[handle] += data

    def read(self, handle: int) -> None:
        data, self.waiting[handle] = self.waiting[handle], b""
        client = self.clients[handle]
        if not data or client is None:
            return
        outcome = self.engine.received(client, data)
        if outcome.failure is not None:
            self.failures.append(outcome.failure)
        self.clients[handle] = outcome.client
        if outcome.end_code is not None:
            self.disconnect(handle, outcome.reply)
        else:
            self.sent[handle] += outcome.reply
        self.engine.dispatch_requests(outcome)

    def feed(self, handle: int, data: bytes) -> None:
        self.arrive(handle, data)
        self.read(handle)

    def close(self, handle: int) -> None:
        """The client's FIN or RST was read."""
        if (client := self.clients[handle]) is not None:
            self.engine.disconnected(client)
            self.clients[handle] = None

    def answers(self, handle: int) -> list[Packet]:
        """Return what was sent on a connection since the last call."""
        decoder = Decoder()
        decoder.feed(self.sent[handle])
        self.sent[handle].clear()
        packets = []
        while (packet := decoder.next()) is not None:
            packets.append(packet)
        return packets


class World:
    """A core, its time, its sockets, and the changes that it has made."""

    def __init__(
        self,
        *,
        idle_timeout: float = T,
        grace: float = GRACE,
        credit: bool = True,  # whether stalls are credited
        poll_before_expiry: bool = True,  # whether connections are read before their sessions end
        wall: Callable[[], float] = lambda: 1_700_000_000.0,
        away_after: float = 0.0,
        returns: int = 0,  # so many per minute lengthen no grace; 0: any
        session_limit: SessionQuota = NO_LIMIT,
        class_limits: Mapping[str, SessionQuota] | None = None,
        packet_rate: PacketRate | None = None,
        authenticator: Authenticator | None = None,
        restricts_sight: bool = False,  # whether tokens say whom a client may see
        certificates: CertificateAuthenticator | None = None,
        rooms: str = "off",
    ) -> None:
        self.now = START
        self.changes: list[Change] = []
        self.sockets = FakeSockets()
        self.delays = Histogram((0.0, TICK / SLOTS_PER_TICK, TICK))
        self.clock = Clock(lambda: self.now, wall)
        self.slot_clock = SlotClock(TICK / SLOTS_PER_TICK, self.now)
        self.guard = StallGuard(TICK, idle_timeout, self.now)
        self.registry = Registry("boot", self.clock)

        def clamped(wish: float | None) -> float:
            return idle_timeout if wish is None else min(max(wish, MIN_IDLE_TIMEOUT), MAX_IDLE_TIMEOUT)

        self.engine = self.sockets.engine = Engine(
            Sessions(
                self.registry,
                self.slot_clock,
                self.now,
                idle_timeout=idle_timeout,
                max_idle_timeout=MAX_IDLE_TIMEOUT,
                away_after=away_after,
            ),
            LoginPolicy(
                self.registry,
                clamped,
                5.0,
                Admission(AdmissionLimits(), self.clock),
                session_limit=session_limit,
                class_limits=class_limits or {},
                authenticator=authenticator,
                certificates=certificates,
            ),
            ServerProtocol(checks_tokens=authenticator is not None),
            self,
            guard=self.guard,
            clock=self.clock,
            disconnect_grace=grace,
            poll_before_expiry=poll_before_expiry,
            flap_damping=FlapDamping(grace, returns, MAX_GRACE),
            packet_rate=packet_rate,
            detection_delay=self.delays,
            visibility=Visibility(authenticator, lambda: self.now)
            if authenticator and restricts_sight
            else None,
            rooms=rooms,
        )
        self.credits = credit
        self.slot = self.slot_clock.at_or_before(self.now)
        self.needs_reader_turn = False  # whether connections of the latest batch are read by tasks

    def append(self, change: Change) -> None:
        """The outbox."""
        self.changes.append(change)

    def login(self, uid: str = "ada", **parts: Any) -> int:
        """Connect and log in; return the connection."""
        handle = self.sockets.connect()
        self.sockets.feed(handle, protocol.encode(protocol.login(uid, **parts)))
        return handle

    def send(self, handle: int, *packets: Packet) -> list[tuple[Kind, int | None, int | None]]:
        """Send packets in one read; return what is received from then on, in brief."""
        self.sockets.answers(handle)
        self.sockets.feed(handle, b"".join(map(protocol.encode, packets)))
        return self.received(handle)

    def received(self, handle: int) -> list[tuple[Kind, int | None, int | None]]:
        """Return what was received since the last call, in brief."""
        return [brief(each) for each in self.sockets.answers(handle)]

    def keep_alive(self, handle: int, seconds: float, beat_s: float = 5.0) -> None:
        """Let time pass in which the client sends plain keepalives, as long as it is connected."""
        until = self.now + seconds
        while self.now < until:
            self.pass_time(min(beat_s, until - self.now))
            if not self.is_disconnected(handle):
                self.beat(handle)

    def session(self, key: SessionKey = "ada") -> Session:
        session = self.registry.get(key)
        assert session is not None
        return session

    def beat(self, *handles: int) -> None:
        """Keepalives, the way a transport hands on plain ones."""
        sessions = []
        for handle in handles:
            client = self.sockets.clients[handle]
            assert isinstance(client, Session)
            assert not client.unhandled
            sessions.append(client)
        self.engine.connections_read(sessions)

    def begin_slot(self) -> float:
        """Do what the ticker does before it expires anything; return the credit that was given."""
        self.guard.loop_ran(self.now)
        credit = self.guard.take_credit(self.now) if self.credits else 0.0
        self.slot_clock.credit(credit)
        self.slot = max(self.slot, self.slot_clock.at_or_before(self.now))
        return credit

    def run_slot(self, between: Callable[[], object] | None = None) -> None:
        """Drive the wheel now; `between` is called in the first slice, after the look and before the end."""
        self.begin_slot()
        while (due := self.engine.expiry.collect(self.slot)) is not None:
            self.needs_reader_turn = self.engine.expiry.poll(due)
            if between is not None:
                between()
                between = None
            self.engine.expiry.handle(due)
        assert between is None, "nothing was due: the test has missed its moment"
        self.engine.slot_done(self.now)

    def pass_time(self, seconds: float) -> None:
        """Let time pass and drive the wheel at every slot boundary."""
        until = self.now + seconds
        step = TICK / SLOTS_PER_TICK
        while self.now + step <= until:
            self.now += step
            self.run_slot()
        self.now = until

    def history(self) -> list[tuple[Op, str, str, int]]:
        """Return what changed so far: operation, uid, device, code."""
        return [(each.op, each.uid, each.device, each.code) for each in self.changes]

    def is_guest(self, handle: int) -> bool:
        return isinstance(self.sockets.clients[handle], Guest)

    def is_disconnected(self, handle: int) -> bool:
        return self.sockets.clients[handle] is None


LOGIN = (Op.LOGIN, "ada", "", int(Code.LOGIN))


def ended(code: Code, uid: str = "ada", device: str = "") -> tuple[Op, str, str, int]:
    return (Op.END, uid, device, int(code))
