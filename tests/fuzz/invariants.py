"""What holds in the engine between any two calls; checked after each step of a fuzzed session.

It reads the private parts of registry, wheel and tables on purpose: their consistency is the point.
"""

from typing import Any, Final

from presence.core.registry import Guest, Session
from presence.core.sessions import NOTHING_DUE
from presence.core.token_expiry import SLOT_S as EXPIRY_SLOT_S
from presence.protocol import FRAME_LIMIT_BEFORE_LOGIN_BYTES, FRAME_LIMIT_BYTES
from tests.fuzz.stage import GRACE_S, ROUNDING_S, SLOT_S, ServerUnderTest

_HEADER_BYTES: Final = 4
_LATEST: Final = 2 * SLOT_S  # after its deadline: the slot of the deadline, and the current one


def check(stage: ServerUnderTest) -> None:
    """Check the invariants that always hold."""
    _sessions(stage)
    _connections(stage)
    _tables(stage)
    ledger = stage.ledger
    assert ledger.logins == len(ledger.entries) + ledger.replaced + ledger.ended
    assert len(stage.activity) == len(ledger.entries)


def check_after_tick(stage: ServerUnderTest) -> None:
    """Check what holds after a tick has ended all due sessions."""
    engine: Any = stage.engine
    for uid, sessions in stage.ledger.online.items():
        assert stage.registry.has_user(uid)
        assert len(stage.registry.sessions_of(uid)) == sessions
    for session in stage.registry:
        last = stage.activity[stage.registry.session_id(session)]
        credit = stage.credited - last.credited
        assert stage.now < last.at + session.idle_timeout + credit + _LATEST, "silent, but not ended"
        if last.lost_at is not None and not stage.scene.returns:
            assert stage.now < last.lost_at + GRACE_S + stage.credited + _LATEST, "lost, but not ended"
        if last.expires_at is not None and session.link is not None:
            assert stage.now < last.expires_at + EXPIRY_SLOT_S + ROUNDING_S, "its token has expired"
    assert engine.expiry._batch == NOTHING_DUE


def _sessions(stage: ServerUnderTest) -> None:
    """Check that each entry of the registry is a session, has a deadline, and equals its record."""
    registry: Any = stage.registry
    wheel: Any = stage.engine.sessions._wheel
    entries, now = stage.ledger.entries, stage.now
    assert len(registry._sessions) == len(entries)
    for key, session in registry._sessions.items():
        assert type(session) is Session, "not a session, but in the registry"
        assert session.key == key
        entry = entries[session.uid, session.device]
        assert entry.session == registry.session_id(session)
        assert entry.profile == registry.profiles.get(session.number)
        assert abs(entry.timeout_s - session.idle_timeout) <= ROUNDING_S
        tick = wheel.tick_of(key)
        assert tick is not None, "it would never end"
        assert tick > wheel.cursor
        assert max(session.login_at, session.last_seen) <= now
        if session.link is None:
            assert session.handle is session.partial is None, "state of a closed connection"
            assert session.number in stage.request_handler.left_by or not stage.scene.served
        else:
            assert stage.peers[session.handle] is session
            assert session.number not in stage.request_handler.left_by


def _connections(stage: ServerUnderTest) -> None:
    """Check that the peer of each open connection is a guest or a live session."""
    for handle, peer in stage.peers.items():
        assert (peer.link, peer.handle) == (stage, handle)
        if isinstance(peer, Guest):
            assert peer.partial is not None
            assert len(peer.partial) < FRAME_LIMIT_BEFORE_LOGIN_BYTES + _HEADER_BYTES
        else:
            assert peer in stage.registry, "no close packet was sent at the end of its session"
            assert peer.partial is None or 0 < len(peer.partial) < FRAME_LIMIT_BYTES + _HEADER_BYTES


def _tables(stage: ServerUnderTest) -> None:
    """Check that tables have entries of live sessions only, and that the counters agree with the changes."""
    engine: Any = stage.engine
    registry: Any = stage.registry
    sessions, expiries, profiles = registry._sessions.keys(), engine.sessions._token_expiry, registry.profiles
    for wheel in (engine.sessions._wheel, engine.sessions._auto_away, expiries._wheel):
        assert wheel._tick_of.keys() <= sessions, "an entry without a session"
    assert expiries._far.keys() <= expiries._wheel._tick_of.keys()
    numbers = {session.number for session in registry}
    assert profiles._updates._full_at.keys() <= numbers
    assert profiles._auto_away <= profiles._shown.keys() <= numbers
    if engine.packet_rate is not None:
        assert engine.packet_rate.table_size <= stage.ledger.logins
    assert engine._counters.logins == stage.ledger.logins
    assert sum(engine._counters.ended.values()) == stage.ledger.ended
