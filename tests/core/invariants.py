"""What holds in the engine between any two calls.

`check` is the list. It reads the private parts of registry, wheels and tables on purpose: their consistency
is the point.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from presence.core.changes import Change, Op
from presence.core.profiles import Profile
from presence.core.registry import NO_HANDLE, Guest, Session
from presence.protocol import FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES, Code
from tests.support.desks import NotingDesk
from tests.support.worlds import World

ROUNDING_S: Final = 0.000501  # changes have whole milliseconds
_HEADER_BYTES: Final = 4


@dataclass
class Record:
    """A session as Redis knows it."""

    session: str
    profile: Profile
    idle_timeout: float


@dataclass
class Records:
    """The sessions that Redis knows of, by user and device, after the changes of an engine.

    For each device logins and ends alternate, except for a login that replaces another; an end or an update
    names the session on record; no session id is used twice.
    """

    entries: dict[tuple[str, str], Record] = field(default_factory=dict)
    logins: int = 0
    replaced: int = 0
    ended: int = 0
    updates: int = 0
    _used: set[str] = field(default_factory=set)

    def append(self, change: Change) -> None:
        """Check that a change fits the records, and apply it."""
        assert change.at_ms >= change.last_seen_ms
        key = change.uid, change.device
        record = self.entries.get(key)
        if change.op is Op.LOGIN:
            assert change.code == Code.LOGIN
            assert change.session not in self._used, "a session id is used twice"
            self._used.add(change.session)
            self.logins += 1
            self.replaced += record is not None
            self.entries[key] = Record(change.session, change.profile, change.idle_timeout_ms / 1000)
            return
        assert record is not None, f"{change.op} of a device without a session"
        assert record.session == change.session, f"{change.op} of a session that has ended"
        match change.op:
            case Op.END:
                del self.entries[key]
                self.ended += 1
            case Op.UPDATE:
                self._update(record, change)
            case Op.REGISTER:
                assert (change.profile, change.code) == (record.profile, Code.RETURNED)
            case _:
                raise AssertionError(f"{change.op} never comes from the engine")

    def _update(self, record: Record, change: Change) -> None:
        before = record.profile, record.idle_timeout
        record.profile, record.idle_timeout = change.profile, change.idle_timeout_ms / 1000
        assert before != (record.profile, record.idle_timeout), "an update that changes nothing"
        was_away, is_away = before[0].status == "away", record.profile.status == "away"
        code = Code.UPDATED if was_away == is_away else Code.AWAY if is_away else Code.BACK
        assert change.code == code
        self.updates += 1


def check(world: World, desk: NotingDesk, records: Records) -> None:
    """Check what holds between any two calls."""
    assert not world.sockets.failures
    _each_session_has_a_deadline_and_its_record(world, desk, records)
    _each_connection_is_a_guest_or_a_live_session(world)
    _tables_hold_live_sessions_only(world)
    _counters_agree_with_changes(world, records)


def check_after_slot(world: World) -> None:
    """Check what holds after a slot: nothing that is due is left, in no wheel and in no batch."""
    engine: Any = world.engine
    for wheel in (engine.sessions._idle_wheel, engine.sessions._away_wheel):
        assert wheel.cursor >= world.slot
    for session in engine.registration._stale:
        silent_s = world.now - session.last_seen
        assert session in world.registry
        assert silent_s > session.idle_timeout + engine.registration.tick_s, "heard again, and not registered"


def _each_session_has_a_deadline_and_its_record(world: World, desk: NotingDesk, records: Records) -> None:
    registry: Any = world.registry
    wheel: Any = world.engine.sessions._idle_wheel
    assert len(registry._sessions) == len(records.entries)
    users: Counter[str] = Counter()
    gone = {session.number for session in desk.gone}
    assert len(gone) == len(desk.gone), "a session is reported as disconnected twice"
    for key, session in registry._sessions.items():
        assert type(session) is Session, "not a session, but in the registry"
        assert session.key == key
        users[session.uid] += 1
        record = records.entries[session.uid, session.device]
        assert record.session == registry.session_id(session)
        assert record.profile == registry.profiles.get(session.number)
        assert abs(record.idle_timeout - session.idle_timeout) <= ROUNDING_S
        slot = wheel.slot_of(key)
        assert slot is not None, "it would never end"
        assert slot > wheel.cursor
        assert max(session.login_at, session.last_seen) <= world.now
        assert (session.number in gone) == (session.transport is None)
        if session.transport is None:
            assert (session.handle, session.unhandled) == (NO_HANDLE, b""), "state of a closed connection"
        else:
            assert world.sockets.clients[session.handle] is session
    for uid, number in users.items():
        assert registry.has_user(uid)
        assert len(registry.sessions_of(uid)) == number
    assert registry._devices.keys() <= users.keys()


def _each_connection_is_a_guest_or_a_live_session(world: World) -> None:
    for handle, client in enumerate(world.sockets.clients):
        if client is None:
            continue
        assert (client.transport, client.handle) == (world.sockets, handle)
        if isinstance(client, Guest):
            assert len(client.unhandled) < FRAME_LIMIT_BEFORE_LOGIN_BYTES + _HEADER_BYTES
        else:
            assert client in world.registry, "its session has ended, and it was not told"
            assert len(client.unhandled) < FRAME_LIMIT_BYTES + _HEADER_BYTES


def _tables_hold_live_sessions_only(world: World) -> None:
    sessions: Any = world.engine.sessions
    registry: Any = world.registry
    profiles = registry.profiles
    keys = registry._sessions.keys()
    for wheel in (sessions._idle_wheel, sessions._away_wheel):
        assert wheel._slot_of.keys() <= keys, "a deadline without a session"
    for expiry in (sessions._token_wheel, sessions._status_wheel):
        assert expiry._wheel._slot_of.keys() <= keys, "a deadline without a session"
        assert expiry._far.keys() <= expiry._wheel._slot_of.keys()
    for session in world.engine.quiet.sessions | world.engine.quiet.holding:
        assert session in registry, "a quiet session has ended"
        assert session.transport is not None
    for session in world.engine.room_claims:
        assert session in registry, "a session whose token claims rooms has ended"
        assert session.transport is not None
    assert profiles.in_rooms == sum(profiles.get(session.number).rooms != "" for session in registry)
    numbers = {session.number for session in registry}
    assert profiles._updates._full_at.keys() <= numbers
    assert profiles._returns_to.keys() <= numbers
    assert profiles._auto_away <= profiles._shown.keys() <= numbers


def _counters_agree_with_changes(world: World, records: Records) -> None:
    engine = world.engine
    counters = engine.statistics()
    assert counters.sessions == len(world.registry)
    assert counters.logins == records.logins == len(records.entries) + records.replaced + records.ended
    assert sum(counters.ended.values()) == records.ended
    assert counters.updates == records.updates
    named = {(name.uid, name.device, name.session) for name in engine.registration.registrable_sessions()}
    assert named <= {(*key, record.session) for key, record in records.entries.items()}
