"""The engine against a naive model, for any actions of clients, time and ticker.

The model knows of each live session when its last packet could be read, when it was read, and the credits
since then. From that alone it knows what may end, and what must have ended.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from presence import protocol
from presence.core.changes import Op
from presence.core.registry import Session, SessionKey
from presence.protocol import Code
from tests.support.worlds import GRACE, TICK, T, World

SLOT = TICK / 2
EPSILON = 1e-6
USERS = st.sampled_from(["ada", "bob"])
DEVICES = st.sampled_from([None, "phone"])
TIMEOUTS = st.sampled_from([None, 5.0, T, 60.0])
BEAT = protocol.encode(protocol.keepalive(1))


@dataclass
class Known:
    """What the model knows of the live session of a key."""

    session: str
    handle: int
    timeout: float
    readable: float
    read: float
    credited: float = 0.0
    credited_since_lost: float = 0.0
    lost: float | None = None
    half_frame: bool = False
    waiting: list[bytes] = field(default_factory=list)


class CoreAgainstModel(RuleBasedStateMachine):
    """Each rule does something to the engine and the model; the changes must fit."""

    connections = Bundle("connections")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.live: dict[SessionKey, Known] = {}
        self.handles: dict[int, SessionKey] = {}
        self.sessions: dict[int, Session] = {}
        self.finished: set[str] = set()
        self.judged = 0

    # Clients

    @rule(target=connections, uid=USERS, device=DEVICES, timeout=TIMEOUTS)
    def log_in(self, uid: str, device: str | None, timeout: float | None) -> int:
        handle = self.world.login(uid, device=device, idle_timeout=timeout)
        key: SessionKey = (uid, device) if device else uid
        old = self.live.get(key)
        now = self.world.now
        self.check({Op.LOGIN})
        assert old is None or self.world.is_hung_up(old.handle)
        self.live[key] = Known(self.world.changes[-1].session, handle, timeout or T, now, now)
        self.handles[handle] = key
        self.sessions[handle] = self.world.session(key)
        return handle

    def of(self, handle: int) -> Known | None:
        """Return the live session of a connection that is still open."""
        known = self.live.get(self.handles[handle])
        return known if known and known.handle == handle and known.lost is None else None

    def able(self, handle: int) -> Known | None:
        """Return the same if a whole packet may be sent on it now."""
        known = self.of(handle)
        unfinished = known is None or known.half_frame or self.world.sockets.waiting[handle]
        return None if unfinished else known

    def packet_read(self, handle: int) -> None:
        if known := self.of(handle):
            known.readable = known.read = self.world.now
            known.credited = 0.0

    @rule(handle=connections)
    def beat_in_bytes(self, handle: int) -> None:
        if self.able(handle):
            self.world.sockets.feed(handle, BEAT)
            self.packet_read(handle)
            self.check(set())

    @rule(handles=st.lists(connections, unique=True, min_size=1))
    def beat_in_a_batch(self, handles: list[int]) -> None:
        able = [each for each in handles if self.able(each)]
        self.world.beat(*able)
        for handle in able:
            self.packet_read(handle)
        self.check(set())

    @rule(handle=connections)
    def half_a_frame(self, handle: int) -> None:
        """The first half is no activity, the second completes a packet."""
        known = self.of(handle)
        if known is None or self.world.sockets.waiting[handle]:
            return
        self.world.sockets.feed(handle, BEAT[3:] if known.half_frame else BEAT[:3])
        if known.half_frame:
            self.packet_read(handle)
        known.half_frame = not known.half_frame
        self.check(set())

    @rule(handle=connections, whole=st.booleans())
    def bytes_arrive_unread(self, handle: int, whole: bool) -> None:
        if (known := self.able(handle)) is None:
            return
        self.world.sockets.arrive(handle, BEAT if whole else BEAT[:3])
        known.waiting.append(BEAT if whole else BEAT[:3])
        if whole:
            known.readable = self.world.now

    @rule()
    def everything_is_read(self) -> None:
        for handle, key in self.handles.items():
            self.world.sockets.read(handle)
            self.was_read(self.live.get(key), handle)
        self.world.engine.keepalives_received([])
        self.check(set())

    def was_read(self, known: Known | None, handle: int) -> None:
        if known is None or known.handle != handle or known.lost is not None:
            return
        for data in known.waiting:
            if data == BEAT:
                known.read = self.world.now
                known.credited = 0.0
            else:
                known.half_frame = True
        known.waiting.clear()

    @rule(handle=consumes(connections))
    def connection_lost(self, handle: int) -> None:
        known = self.of(handle)
        self.world.sockets.close(handle)
        if known:
            known.lost = self.world.now
            known.readable = known.read  # a reset discards unread packets
            known.waiting.clear()
        self.check(set())

    @rule(handle=consumes(connections), reason=st.sampled_from([Code.LOGOUT, Code.BACKGROUND]))
    def log_out(self, handle: int, reason: Code) -> None:
        if known := self.able(handle):
            self.world.sockets.feed(handle, protocol.encode(protocol.logout(reason.reason)))
            self.check({Op.END}, immediate=(known.session, reason))

    @rule(handle=connections)
    def transport_reports_a_close_late(self, handle: int) -> None:
        """After a hang-up, or after the session was replaced: no session ends."""
        if self.of(handle) is None:
            self.world.engine.closed(self.sessions[handle])
            self.world.engine.keepalives_received([self.sessions[handle]])
            self.check(set())

    @rule(handle=connections)
    def superseded_elsewhere(self, handle: int) -> None:
        key = self.handles[handle]
        if (known := self.live.get(key)) and known.handle == handle:
            assert self.world.engine.terminator.supersede(key, known.session)
            self.check({Op.END}, immediate=(known.session, Code.REPLACED))
        self.check(set())

    # Time

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes_without_a_tick(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(seconds=st.floats(0.0, 40.0))
    def ticks_in_time(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.now += SLOT
            self.tick()

    @rule(seconds=st.floats(1.1, 90.0), reads_first=st.booleans())
    def stall(self, seconds: float, reads_first: bool) -> None:
        """The process stalls; afterwards connections or the ticker may run first."""
        self.world.now += seconds
        if reads_first:
            self.everything_is_read()
        self.tick()

    @rule()
    def tick(self) -> None:
        self.settle(self.world.begin_tick())
        while self.slice():
            pass
        self.world.engine.tick_done(self.world.now)
        self.check({Op.END})
        self.no_session_is_overdue()

    @rule(handle=connections)
    def tick_while_a_packet_arrives(self, handle: int) -> None:
        """A packet between the poll and the expiry rescues its session."""
        self.settle(self.world.begin_tick())
        while self.world.engine.collect_expired(self.world.tick):
            self.polled()
            if (known := self.of(handle)) and not known.half_frame:
                self.world.sockets.feed(handle, BEAT)
                self.packet_read(handle)
            self.world.engine.expire_idle(self.world.now)
        self.check({Op.END})
        self.no_session_is_overdue()

    def slice(self) -> bool:
        due = self.world.engine.collect_expired(self.world.tick)
        self.polled()
        self.world.engine.expire_idle(self.world.now)
        return due

    def polled(self) -> None:
        """Find out which connections the last poll has read."""
        for known in self.live.values():
            if known.waiting and not self.world.sockets.waiting[known.handle]:
                self.was_read(known, known.handle)

    def settle(self, credit: float) -> None:
        for known in self.live.values():
            known.credited += credit
            if known.lost is not None:
                known.credited_since_lost += credit

    # Checks

    def check(self, allowed: set[Op], immediate: tuple[str, Code] | None = None) -> None:
        """Check that the new changes are allowed now."""
        fresh, self.judged = self.world.changes[self.judged :], len(self.world.changes)
        for change in fresh:
            assert change.op in allowed
            if change.op is not Op.END:
                continue
            key: SessionKey = (change.uid, change.device) if change.device else change.uid
            assert change.session not in self.finished, "ended twice, or after it was replaced"
            known = self.live.pop(key)
            assert change.session == known.session, "only the current session ends"
            self.finished.add(change.session)
            if immediate is not None:
                assert (change.session, change.code) == immediate
                continue
            earliest = known.readable + known.timeout
            if change.code == Code.CLOSED:
                assert known.lost is not None
                earliest = min(earliest, known.lost + GRACE)
            else:
                assert change.code == Code.IDLE_TIMEOUT
            assert change.at >= earliest - EPSILON, "early"
            assert change.at_ms >= change.last_seen_ms
        if Op.LOGIN in allowed:
            (login,) = fresh
            if old := self.live.get((login.uid, login.device) if login.device else login.uid):
                self.finished.add(old.session)

    def no_session_is_overdue(self) -> None:
        """After a tick no session is left whose deadline was more than a slot ago, apart from credits."""
        now = self.world.now
        for known in self.live.values():
            latest = known.read + known.timeout + known.credited
            if known.lost is not None:
                latest = min(latest, known.lost + GRACE + known.credited_since_lost)
            assert now < latest + SLOT + EPSILON, "overdue"

    @invariant()
    def wheel_registry_and_model_agree(self) -> None:
        keys = {session.key for session in self.world.registry}
        assert keys == set(self.live)
        for key in keys:
            session = self.world.registry.get(key)
            assert isinstance(session, Session)
            assert (session.link is None) == (self.live[key].lost is not None)
            unfinished = self.live[key].half_frame and session.link is not None
            assert (session.partial is not None) == unfinished

    def teardown(self) -> None:
        """All clients fall silent: in the end no session is left."""
        for _ in range(500):
            self.world.now += SLOT
            self.tick()
        assert not self.live
        assert len(self.world.registry) == 0


TestCoreAgainstModel = CoreAgainstModel.TestCase
TestCoreAgainstModel.settings = settings(stateful_step_count=60, deadline=None)
