"""The engine against a naive model, for any actions of clients, time, ticker, other nodes and an operator.

The model knows of each live session when its last packet could be read, when it was read, and the credits
since then. From that alone it knows what may end, and what must have ended. After each step the parts of the
engine must agree with each other, too: see `invariants`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from presence import protocol
from presence.core import deadline_wheel, expiry
from presence.core import rooms as session_rooms
from presence.core.admission import PacketRate
from presence.core.ban_list import Ban
from presence.core.changes import Change, Op
from presence.core.login_policy import ARRIVAL_ERROR_S, NO_LIMIT, SessionQuota
from presence.core.registry import Session, SessionKey
from presence.core.service_requests import send_ok
from presence.protocol import FRAME_LIMIT_BYTES, Code, Decoder, Kind, Packet
from tests.auth.gates import WordAuthenticator
from tests.core import invariants
from tests.core.invariants import Records
from tests.support.desks import NotingDesk
from tests.support.worlds import GRACE, MAX_GRACE, TICK, T, World

SLOT = TICK / 2
EPSILON = 1e-6
LOGIN_TIMEOUT = 5.0  # of a `World`
AWAY_AFTER = 8.0
MAX_PACKETS = 6.0  # at the same moment, where few are allowed
# Smaller than in a server, so that sessions wait for the next batch, and tokens expire beyond the horizon
MAX_EXPIRED = 2
HORIZON_SLOTS = 70
MAX_ROOMS = 3
EXAMPLES_SHARE = 2  # in each scene half of the usual number of examples

NO_CHANGE: Final[Mapping[str, list[str]]] = MappingProxyType({})
NUMBERS = st.integers(0, 3)  # of a session
ALL = 15  # sessions, a bit each
USERS = st.sampled_from(["ada", "bob"])
DEVICES = st.sampled_from([None, "phone"])
TIMEOUTS = st.sampled_from([None, 5.0, 7.0, 60.0])
TOKENS_S = st.sampled_from([3, 10, 45])
ROOMS = st.lists(st.sampled_from("abcd"), max_size=MAX_ROOMS + 1)
CLAIMS = st.sampled_from([":", "a:", "a,b:c,d", "d,b,c:a", ":a,b,c,d"])  # of a `WordAuthenticator`
ROOM_CHANGES = st.fixed_dictionaries({}, optional=dict.fromkeys(("rooms", "join", "leave"), ROOMS))
STATUSES = st.sampled_from([None, "online", "away", "busy"])
BRIEF = "dnd"  # a status that is only ever set with an end
BEAT = protocol.encode(protocol.keepalive(1))
ASK = protocol.encode(protocol.message("bob", "x" * 10_000, id=4))
NONSENSE = bytes.fromhex("00000001 c0")
MISPLACED = protocol.encode(protocol.login("ada", id=1))
TOO_LONG = (FRAME_LIMIT_BYTES + 1).to_bytes(4, "big")
# Ends of connections by the server after which a session has its grace
HUNG_UP = (Code.AUTH_EXPIRED, Code.RATE_LIMITED, Code.SERVER_DRAIN)
V = TypeVar("V")


class Scene(NamedTuple):
    """The settings of the server."""

    grace: float = GRACE
    away_after: float = 0.0
    quota: SessionQuota = NO_LIMIT
    returns: int = 0
    is_tight: bool = False  # few packets are allowed
    has_tokens: bool = False
    needs_a_turn: bool = False  # connections are read by tasks, not by the poll
    rooms: str = "off"


SCENES = {
    "plain": Scene(rooms="open"),
    "tokens": Scene(away_after=AWAY_AFTER, has_tokens=True, rooms="claimed"),
    "no grace": Scene(away_after=AWAY_AFTER, grace=0.0, needs_a_turn=True),
    "long graces": Scene(has_tokens=True, returns=1, rooms="open"),
    "the oldest go": Scene(quota=SessionQuota(1)),
    "the new are refused": Scene(quota=SessionQuota(1, refuse_new=True), returns=1),
    "few packets": Scene(is_tight=True, needs_a_turn=True),
}
SOMEBODY_IS_THERE = precondition(lambda self: any(each.lost is None for each in self.live.values()))


@dataclass
class Known:
    """What the model knows of the live session of a key.

    Times "by the wheel" lack the credits until then, as its deadlines do.
    """

    uid: str
    session: str
    handle: int
    timeout: float
    arrived: float
    readable: float
    read: float
    read_wheel: float  # by the wheel
    active: float  # when its user was, by the wheel
    changed: float  # when what it shows changed, by the wheel
    expires: float = math.inf  # when its token does
    brief_until: float = math.inf  # when its status ends, if that is `BRIEF`
    is_set_away: bool = False  # whether its client ever did that
    is_quiet: bool = False
    rooms: tuple[str, ...] = ()
    claim: str = ":"  # on rooms, of its token
    lost: float | None = None
    lost_wheel: float = 0.0  # by the wheel
    lost_code: Code = Code.CLOSED
    may_end: Code | None = None  # for this reason, in this step
    rest: bytes = b""  # of a frame whose beginning was read
    unread: bytes = b""


class CoreAgainstModel(RuleBasedStateMachine):
    """Each rule does something to the engine and the model; the changes must fit."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.live: dict[SessionKey, Known] = {}
        self.sessions: list[Session] = []  # all that there were
        self.records = Records()
        self.judged = 0
        self.credits = 0.0
        self.scene = scene
        self.world = World(
            grace=scene.grace,
            away_after=scene.away_after,
            session_limit=scene.quota,
            returns=scene.returns,
            packet_rate=PacketRate(1.0, MAX_PACKETS) if scene.is_tight else None,
            authenticator=WordAuthenticator() if scene.has_tokens else None,
            rooms=scene.rooms,
        )
        self.world.sockets.needs_a_turn = scene.needs_a_turn
        self.desk = self.world.engine.request_handler = NotingDesk()
        self.begin_resync()
        self.everybody_logs_in(None, 10)

    # What the model knows

    @property
    def wheel_now(self) -> float:
        return self.world.now - self.credits

    def connected(self, number: int) -> Known | None:
        """Return one of the live sessions that have a connection."""
        return _one_of([known for known in self.live.values() if known.lost is None], number)

    def able(self, number: int) -> Known | None:
        """Return one of those on whose connection a whole packet may be sent now."""
        able = [each for each in self.live.values() if each.lost is None and not (each.rest or each.unread)]
        return _one_of(able, number)

    def packet_read(self, known: Known, *, is_activity: bool = False) -> None:
        known.readable = known.read = self.world.now
        known.read_wheel = self.wheel_now
        if is_activity:
            known.active = known.changed = self.wheel_now

    def connection_ended(self, known: Known, code: Code) -> None:
        known.lost, known.lost_wheel, known.lost_code = self.world.now, self.wheel_now, code
        known.readable = known.read  # a reset discards unread packets
        known.rest = known.unread = b""

    def may_join(self, claim: str, room: str) -> bool:
        return self.scene.rooms == "open" or room in claim.partition(":")[2].split(",")

    def cut(self, names: Iterable[str], claim: str) -> tuple[str, ...]:
        """Return the claimed rooms, and the first of the others that may be joined."""
        found = [each for each in claim.partition(":")[0].split(",") if each]
        for name in names if self.scene.rooms != "off" else ():
            if name not in found and len(found) < MAX_ROOMS and self.may_join(claim, name):
                found.append(name)
        return tuple(sorted(found)) if self.scene.rooms != "off" else ()

    def changed_rooms(self, known: Known, change: Mapping[str, list[str]]) -> tuple[str, ...] | Code:
        """Return the rooms of a session after an update, or why it is refused."""
        if self.scene.rooms == "off":
            return ()
        claimed = [each for each in known.claim.partition(":")[0].split(",") if each]
        rooms = {*change.get("rooms", known.rooms)}
        for name in [*change.get("rooms", ()), *change.get("join", ())]:
            if name not in claimed and not self.may_join(known.claim, name):
                return Code.NOT_ALLOWED
        for name in change.get("leave", ()):
            rooms.discard(name)
        rooms |= {*change.get("join", ()), *claimed}
        return Code.TOO_LARGE if len(rooms) > MAX_ROOMS else tuple(sorted(rooms))

    def said(self, handle: int) -> list[Packet]:
        """Return all that the server has sent on a connection."""
        decoder = Decoder()
        decoder.feed(self.world.sockets.sent[handle])
        return [*iter(decoder.next, None)]

    # Clients

    @rule(
        uid=USERS,
        device=DEVICES,
        timeout=TIMEOUTS,
        token_s=TOKENS_S,
        waited=st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 6.0]),
        rooms=ROOMS,
        claim=CLAIMS,
    )
    def log_in(
        self,
        uid: str,
        device: str | None,
        timeout: float | None,
        token_s: int,
        waited: float,
        rooms: Sequence[str] = (),
        claim: str = ":",
    ) -> None:
        key: SessionKey = (uid, device) if device else uid
        old = self.live.get(key)
        others = [self.live[each] for each in self.live if uid in (each, each[0]) and each != key]
        refusal = self.refusal(old, others, waited)
        for each in others:
            each.may_end = Code.SESSION_LIMIT
        token = f"{uid}:{token_s}:::{claim}" if self.scene.has_tokens else None
        self.world.sockets.lain_s = waited
        handle = self.world.login(uid, device=device, idle_timeout=timeout, token=token, rooms=rooms)
        self.world.sockets.lain_s = 0.0
        self.observe()
        for each in others:
            each.may_end = None
        answer = self.said(handle)[0]
        if refusal is not None:
            assert (answer.kind, answer.payload["code"]) == (Kind.ERROR, refusal)
            return
        assert answer.kind == Kind.OK
        assert old is None or self.world.is_disconnected(old.handle)
        assert len(self.world.registry.sessions_of(uid)) <= self.scene.quota.max_sessions
        now = self.world.now
        self.live[key] = Known(
            *(uid, answer.payload["session"], handle, timeout or T),
            *(now - waited, now, now, self.wheel_now, self.wheel_now, self.wheel_now),
        )
        if token:
            self.live[key].expires = now + token_s
            self.live[key].claim = claim
        self.live[key].rooms = self.cut(rooms, self.live[key].claim)
        self.joined_is_right(self.live[key], answer, is_asked=True)
        self.sessions.append(self.world.session(key))

    @rule(timeout=TIMEOUTS, token_s=TOKENS_S)
    def everybody_logs_in(self, timeout: float | None, token_s: int) -> None:
        for uid in ("ada", "bob"):
            for device in (None, "phone"):
                self.log_in(uid, device, timeout, token_s, 0.0)

    def refusal(self, old: Known | None, others: list[Known], waited: float) -> Code | None:
        """Return why a login that was read so late is refused; None: it is not."""
        if waited > LOGIN_TIMEOUT:
            return Code.LOGIN_TIMEOUT
        if old is not None:
            is_older = old.arrived > self.world.now - waited + ARRIVAL_ERROR_S
            return Code.REPLACED if is_older else None
        excess = len(others) + 1 - self.scene.quota.max_sessions
        can_go = [each for each in others if each.lost is not None or not self.scene.quota.refuse_new]
        return Code.SESSION_LIMIT if excess > len(can_go) else None

    @rule(said=st.sampled_from([b"", BEAT[:3], MISPLACED[:9], BEAT, NONSENSE, TOO_LONG]))
    def a_connection_does_not_log_in(self, said: bytes) -> None:
        handle = self.world.sockets.connect()
        self.world.sockets.feed(handle, said)
        assert self.world.is_guest(handle) == (said in (b"", BEAT[:3], MISPLACED[:9]))
        self.observe()

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS, times=st.sampled_from([1, 1, 8]))
    def beat_in_bytes(self, number: int, times: int) -> None:
        if known := self.able(number):
            self.send(known, BEAT * times)
            assert not (self.scene.is_tight and times > MAX_PACKETS) or self.world.is_disconnected(
                known.handle
            )

    @SOMEBODY_IS_THERE
    @rule(which=st.integers(1, ALL))
    def beat_in_a_batch(self, which: int) -> None:
        able = [known for number in range(4) if which >> number & 1 and (known := self.able(number))]
        able = [*{known.handle: known for known in able}.values()]
        self.world.beat(*(known.handle for known in able))
        for known in able:
            self.packet_read(known)
        self.observe()

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS, frame=st.sampled_from([BEAT, ASK]), size=st.sampled_from([1, 3, 5]))
    def half_a_frame(self, number: int, frame: bytes, size: int) -> None:
        """The first part is no activity, the second completes a packet."""
        known = self.connected(number)
        if known is None or known.unread:
            return
        if known.rest:
            rest, known.rest = known.rest, b""
            self.send(known, rest, is_activity=len(rest) > len(BEAT))
        else:
            self.world.sockets.feed(known.handle, frame[:size])
            known.rest = frame[size:]
            self.observe()

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS, is_whole=st.booleans())
    def bytes_arrive_unread(self, number: int, is_whole: bool) -> None:
        if known := self.able(number):
            known.unread = BEAT if is_whole else BEAT[:3]
            self.world.sockets.arrive(known.handle, known.unread)
            if is_whole:
                known.readable = self.world.now

    @SOMEBODY_IS_THERE
    @rule()
    def everything_is_read(self) -> None:
        for handle in range(len(self.world.sockets.clients)):
            self.world.sockets.read(handle)
        self.world.engine.connections_read()
        self.observe()

    @SOMEBODY_IS_THERE
    @rule(
        number=NUMBERS,
        status=STATUSES,
        timeout=TIMEOUTS,
        quiet=st.sampled_from([None, True, False]),
        times=st.sampled_from([1, 1, 12]),
        change=ROOM_CHANGES,
    )
    def update(
        self,
        number: int,
        status: str | None,
        timeout: float | None,
        quiet: bool | None,
        times: int,
        change: Mapping[str, list[str]] = NO_CHANGE,
    ) -> None:
        """Change the status, the idle time-out, quiet and rooms; beyond ten times it is refused."""
        if known := self.able(number):
            known.is_set_away |= status == "away"
            parts: dict[str, Any] = {"meta": {"n": times}, **change}
            packet = protocol.update(id=7, status=status, idle_timeout=timeout, quiet=quiet, **parts)
            rooms = self.changed_rooms(known, change) if change else known.rooms
            if answer := self.send(known, protocol.encode(packet) * times, is_activity=True, refusal=rooms):
                assert not isinstance(rooms, Code)
                known.rooms = rooms
                self.joined_is_right(known, answer, is_asked=bool(change))
                known.timeout = timeout or known.timeout
                known.is_quiet = known.is_quiet if quiet is None else quiet
                known.brief_until = math.inf if status else known.brief_until

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS, seconds=st.sampled_from([-1.0, 0.7, 4.0, 50.0]))
    def set_a_status_that_ends(self, number: int, seconds: float) -> None:
        if known := self.able(number):
            until_ms = round(self.world.clock.seen_ms(self.world.now) + seconds * 1000)
            packet = protocol.update(id=7, status=BRIEF, until_ms=until_ms)
            if self.send(known, protocol.encode(packet), is_activity=True) and seconds > 0:
                known.brief_until = self.world.now + seconds

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS, seconds=TOKENS_S, is_good=st.booleans(), claim=CLAIMS)
    def renew_token(self, number: int, seconds: int, is_good: bool, claim: str = ":") -> None:
        if known := self.able(number):
            token = f"{known.uid if is_good else 'eve'}:{seconds}:::{claim}"
            packet = protocol.update(id=7, token=token)
            answer = self.send(known, protocol.encode(packet), is_activity=not self.scene.has_tokens)
            if answer:
                assert is_good
                known.expires = self.world.now + seconds
                former = known.claim.partition(":")[0].split(",")
                known.rooms = self.cut([each for each in known.rooms if each not in former], claim)
                known.claim = claim
                self.joined_is_right(known, answer, is_asked=True)

    @SOMEBODY_IS_THERE
    @rule(number=NUMBERS)
    def ask(self, number: int) -> None:
        """A client sends a request; the oldest that waits is answered."""
        if known := self.able(number):
            self.send(known, ASK, is_activity=True)
        if self.desk.taken:
            session, request = self.desk.taken.pop(0)
            send_ok(session, request.id, {})

    def joined_is_right(self, known: Known, answer: Packet, *, is_asked: bool) -> None:
        joined = [*known.rooms] if is_asked and self.scene.rooms != "off" else None
        assert answer.payload.get("joined") == joined

    def send(
        self, known: Known, data: bytes, *, is_activity: bool = False, refusal: object = None
    ) -> Packet | None:
        """Send packets; return the first answer if it grants something. `refusal`: a code that it must have,
        unless there were too many; nothing else refuses for rooms."""
        answered = len(self.said(known.handle))
        self.world.sockets.feed(known.handle, data)
        self.packet_read(known, is_activity=is_activity)
        self.observe()
        answer = next(iter(self.said(known.handle)[answered:]), None)
        if answer is not None and answer.kind == Kind.ERROR:
            code = Code(answer.payload["code"])
            assert code is refusal or code not in (Code.NOT_ALLOWED, Code.TOO_LARGE)
            return None
        return answer if answer is not None and answer.kind == Kind.OK else None

    @SOMEBODY_IS_THERE
    @rule(
        number=NUMBERS,
        how=st.sampled_from([None, None, Code.LOGOUT, Code.BACKGROUND, NONSENSE, MISPLACED, TOO_LONG]),
    )
    def leave(self, number: int, how: Code | bytes | None) -> None:
        """The connection is lost, a client logs out, or sends nonsense."""
        if how is None:
            self.connection_lost(number)
        elif known := self.able(number):
            if isinstance(how, Code):
                known.may_end = how
                self.send(known, protocol.encode(protocol.logout(how.reason)))
                assert known not in self.live.values()
            else:
                self.world.sockets.feed(known.handle, how)
                self.connection_ended(known, Code(self.said(known.handle)[-1].payload["code"]))
                self.observe()

    def connection_lost(self, number: int) -> None:
        if known := self.connected(number):
            self.world.sockets.close(known.handle)
            self.connection_ended(known, Code.CLOSED)
            self.observe()

    @rule(number=st.integers(0, 100))
    def transport_reports_a_close_late(self, number: int) -> None:
        """After a hang-up, or after the session was replaced: no session ends."""
        gone = _one_of([session for session in self.sessions if session.transport is None], number)
        if gone is not None:
            self.world.engine.disconnected(gone)
            self.world.engine.connections_read([gone])
            self.observe()

    # Other nodes, the operator, a Redis that lost data

    @rule(
        number=NUMBERS,
        why=st.sampled_from([Code.REPLACED, Code.KICKED, Code.SESSION_LIMIT, Code.BANNED]),
        is_current=st.booleans(),
    )
    def ended_by_order(self, number: int, why: Code, is_current: bool) -> None:
        """An order for a session that is not the present one of its device ends nothing."""
        key = _one_of([*self.live], number)
        if key is None:
            return
        known, terminator = self.live[key], self.world.engine.terminator
        session = known.session if is_current else "boot-0"
        if is_current or why is Code.BANNED:
            known.may_end = why
        match why:
            case Code.REPLACED:
                terminator.supersede(key, session)
            case Code.KICKED:
                terminator.kick(key, session)
            case Code.SESSION_LIMIT:
                terminator.limit(key, session)
            case Code.BANNED:
                terminator.ban(Ban(known.uid, "" if isinstance(key, str) else key[1], math.inf, ""))
        self.observe()
        assert (key in self.live) is (known.may_end is None)

    def begin_resync(self) -> None:
        self.resync_began = self.world.now
        self.resync: Iterator[Change] = self.world.engine.registration.registrations([*self.world.registry])

    @rule(count=st.integers(1, 3))
    def register_again(self, count: int) -> None:
        """A resync goes on by some sessions, or begins; who was silent for too long is left out."""
        for _ in range(count):
            if (change := next(self.resync, None)) is None:
                self.begin_resync()
                continue
            self.observe()
            known = self.live.get((change.uid, change.device) if change.device else change.uid)
            if known and known.session == change.session:
                is_stale = self.resync_began - known.read > known.timeout + TICK
                assert change.op is (Op.STALE if is_stale else Op.REGISTER)

    # Time

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes_without_a_tick(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(
        seconds=st.sampled_from([3.0, 11.0, 33.0, 62.0]),
        meanwhile=st.sampled_from(["silence", "beats", "unread"]),
    )
    def ticks_in_time(self, seconds: float, meanwhile: str) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self.world.now += SLOT
            if meanwhile == "beats":
                self.beat_in_a_batch(ALL)
            elif meanwhile == "unread":
                self.bytes_arrive_unread(0, is_whole=True)
            self.run_slot()

    @rule(seconds=st.floats(1.1, 90.0), first=st.sampled_from(["ticker", "reads", "resync"]))
    def stall(self, seconds: float, first: str) -> None:
        """The process stalls; afterwards connections, a resync or the ticker may run first."""
        self.world.now += seconds
        if first == "reads":
            self.everything_is_read()
        elif first == "resync":
            self.begin_resync()
            self.register_again(len(self.live))
        self.run_slot()

    @SOMEBODY_IS_THERE
    @rule(
        number=NUMBERS,
        action=st.sampled_from(["beat", "read", "lose", "kick", "supersede", "renew", "update", "log in"]),
    )
    def something_happens_between_the_last_look_and_the_end(self, number: int, action: str) -> None:
        """Time passes until something is due; right before its end something happens."""
        actions: dict[str, Callable[[], object]] = {
            "beat": lambda: self.beat_in_bytes(number, 1),
            "read": self.everything_is_read,
            "lose": lambda: self.connection_lost(number),
            "kick": lambda: self.ended_by_order(number, Code.KICKED, is_current=True),
            "supersede": lambda: self.ended_by_order(number, Code.REPLACED, is_current=True),
            "renew": lambda: self.renew_token(number, 10, is_good=True),
            "update": lambda: self.update(number, None, None, True, 1),
            "log in": lambda: self.log_in("ada", None, None, 10, 0.0),
        }
        for _ in range(round(2 * T / SLOT)):
            self.world.now += SLOT
            if self.run_slot(actions[action]):
                break

    def run_slot(self, between: Callable[[], object] | None = None) -> bool:
        """Tick; `between` is called before what is due ends. Return whether anything was."""
        self.credits += self.world.begin_slot()
        was_due = False
        while (due := self.world.engine.expiry.collect(self.world.slot)) is not None:
            if self.world.engine.expiry.poll(due):
                self.everything_is_read()
            self.observe()
            if between is not None and not was_due:
                between()
            was_due = True
            self.world.engine.expiry.handle(due)
            self.observe()
        self.world.engine.slot_done(self.world.now)
        self.observe()
        self.nothing_is_overdue()
        return was_due

    # Checks

    def observe(self) -> None:
        """Learn which connections were read or hung up, and check that the new changes are allowed now."""
        for known in self.live.values():
            if known.unread and not self.world.sockets.waiting[known.handle]:
                if known.unread == BEAT:
                    self.packet_read(known)
                else:
                    known.rest = BEAT[len(known.unread) :]
                known.unread = b""
            if known.lost is None and self.world.is_disconnected(known.handle):
                code = self.said(known.handle)[-1].payload.get("code")
                if code in HUNG_UP:
                    code = Code(code)
                    assert code is not Code.AUTH_EXPIRED or self.world.now >= known.expires
                    assert code is not Code.RATE_LIMITED or self.scene.is_tight
                    self.connection_ended(known, code)
        fresh, self.judged = self.world.changes[self.judged :], len(self.world.changes)
        for change in fresh:
            self.records.append(change)
            key: SessionKey = (change.uid, change.device) if change.device else change.uid
            if change.op is Op.END:
                self.may_end(self.live.pop(key), change)
            elif change.op is Op.UPDATE:
                self.may_be_shown(self.live[key], change)

    def may_end(self, known: Known, change: Change) -> None:
        if change.code == known.may_end:
            return
        earliest = known.readable + known.timeout
        if change.code != Code.IDLE_TIMEOUT:
            assert known.lost is not None
            assert change.code == known.lost_code
            grace = self.scene.grace if known.lost_code in (Code.CLOSED, *HUNG_UP) else 0.0
            earliest = min(earliest, known.lost + grace)
        else:
            assert known.lost is None or known.lost_code is Code.SERVER_DRAIN
        assert change.at >= earliest - EPSILON, "early"

    def may_be_shown(self, known: Known, change: Change) -> None:
        if change.profile.status == "away" and not known.is_set_away:
            assert self.scene.away_after
            assert self.wheel_now >= known.active + AWAY_AFTER - EPSILON, "away too early"
        known.changed = self.wheel_now

    def nothing_is_overdue(self) -> None:
        """After a slot nothing is left whose deadline was more than a slot ago, apart from credits."""
        invariants.check_after_slot(self.world)
        now, wheel_now = self.world.now, self.wheel_now
        longest_grace = MAX_GRACE if self.scene.returns else self.scene.grace
        for key, known in self.live.items():
            latest = known.read_wheel + known.timeout
            if known.lost is not None and known.lost_code is not Code.SERVER_DRAIN:
                latest = min(latest, known.lost_wheel + longest_grace)
            assert wheel_now < latest + SLOT + EPSILON, "overdue"
            if known.lost is None:
                assert now < known.expires + deadline_wheel.SLOT_S + EPSILON, "its token has expired"
            status = self.world.registry.profiles.get(self.world.session(key).number).status
            assert status != BRIEF or now < known.brief_until + deadline_wheel.SLOT_S + EPSILON
            if status == "away" and not known.is_set_away:
                assert wheel_now >= known.active + AWAY_AFTER - EPSILON, "active again, and still away"
            if self.scene.away_after and status == "online":
                assert wheel_now < known.changed + AWAY_AFTER + SLOT + EPSILON, "not yet away"

    @invariant()
    def wheel_registry_and_model_agree(self) -> None:
        keys = {session.key for session in self.world.registry}
        assert keys == set(self.live)
        for key in keys:
            session, known = self.world.session(key), self.live[key]
            assert (session.transport is None) == (known.lost is not None)
            assert bool(session.unhandled) == bool(known.rest)
            is_quiet = session in self.world.engine.quiet.sessions
            assert is_quiet == (known.is_quiet and known.lost is None)
            assert self.world.registry.profiles.get(session.number).rooms == " ".join(known.rooms)
        invariants.check(self.world, self.desk, self.records)

    def teardown(self) -> None:
        """The server stops, and all clients fall silent: in the end no session is left."""
        self.everybody_logs_in(None, 10)
        self.world.engine.refuse_logins(lambda: 2.5)
        refused = self.world.login("eve")
        assert self.said(refused)[-1].payload["code"] == Code.SERVER_DRAIN
        self.world.engine.terminator.disconnect_all(
            [*self.world.registry], lambda: protocol.encode(protocol.goodbye(Code.SERVER_DRAIN))
        )
        self.observe()
        assert all(session.transport is None for session in self.world.registry)
        for _ in range(500):
            self.world.now += SLOT
            self.run_slot()
        self.wheel_registry_and_model_agree()
        assert not self.live


def _one_of(those: list[V], number: int) -> V | None:
    return those[number % len(those)] if those else None


@pytest.mark.parametrize("name", SCENES)
def test_the_core_fits_its_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_EXPIRED_PER_TURN", MAX_EXPIRED)
    monkeypatch.setattr(deadline_wheel, "HORIZON_SLOTS", HORIZON_SLOTS)
    monkeypatch.setattr(session_rooms, "ROOMS_MAX", MAX_ROOMS)
    examples = settings().max_examples // EXAMPLES_SHARE
    run_state_machine_as_test(
        partial(CoreAgainstModel, SCENES[name]),  # type: ignore[arg-type]  # it calls what it is given
        settings=settings(max_examples=examples, stateful_step_count=60),
    )
