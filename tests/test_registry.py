"""Sessions by (uid, device): only who holds a session can end it."""

from presence.changes import Op
from presence.clock import Clock
from presence.registry import Guest, Registry, Session, SessionKey
from protocol import Code
from tests.worlds import FakeSockets

CLOCK = Clock(lambda: 0.0, lambda: 1_000_000.0)


def login(registry: Registry, key: SessionKey = "ada", now: float = 10.0) -> Session:
    return registry.login(Guest(FakeSockets(), 3), key, 30.0, now, now).session


def test_a_login_is_the_change_that_redis_needs() -> None:
    registry = Registry("boot", CLOCK)
    joined = registry.login(Guest(FakeSockets(), 3), ("ada", "phone"), 45.0, 9.5, 10.0)
    change = joined.change
    assert joined.displaced is None
    assert (change.op, change.uid, change.device, change.code) == (Op.LOGIN, "ada", "phone", Code.LOGIN)
    assert (change.at, change.at_ms) == (9.5, 1_000_010_000)
    assert (change.last_seen_ms, change.idle_timeout_ms) == (1_000_010_000, 45_000)


def test_session_ids_are_unique_in_a_process_and_over_processes() -> None:
    one, other = Registry("boot-a", CLOCK), Registry("boot-b", CLOCK)
    ids = {
        registry.session_id(login(registry, key)) for registry in (one, other) for key in ("ada", "bob") * 20
    }
    assert len(ids) == 80


def test_an_end_is_told_once_and_by_the_session_that_is_there() -> None:
    registry = Registry("boot", CLOCK)
    old, new = login(registry), login(registry)
    assert registry.end(old, Code.CLOSED, 20.0) is None
    assert registry.get("ada") is new
    change = registry.end(new, Code.CLOSED, 20.0)
    assert change is not None
    assert (change.op, change.at, change.at_ms) == (Op.END, 20.0, 1_000_020_000)
    assert change.last_seen_ms == 1_000_010_000
    assert registry.end(new, Code.CLOSED, 21.0) is None


def test_a_registration_keeps_the_logins_moment() -> None:
    registry = Registry("boot", CLOCK)
    change = registry.registration(login(registry), 40.0)
    assert (change.op, change.code, change.at) == (Op.REGISTER, Code.RETURNED, 10.0)


def test_an_event_is_never_dated_before_its_decision_nor_a_sight_after_it() -> None:
    clock = Clock(lambda: 0.0, lambda: 0.0)
    assert clock.decided_ms(1.0001) == 1001
    assert clock.seen_ms(1.0009) == 1000


# All sessions of a user


def test_the_sessions_of_a_user_are_found_whatever_the_device() -> None:
    registry = Registry("boot", CLOCK)
    phone, other = login(registry, ("ada", "phone")), login(registry, "bob")
    assert registry.of("ada") == [phone]
    tablet, default, desk = (login(registry, key) for key in (("ada", "tablet"), "ada", ("ada", "desk")))
    assert registry.of("ada") == [default, phone, tablet, desk]
    assert registry.of("bob") == [other]
    assert registry.of("eve") == []


def test_a_return_of_a_device_is_no_further_session_of_its_user() -> None:
    registry = Registry("boot", CLOCK)
    login(registry, ("ada", "phone"))
    tablet, phone = login(registry, ("ada", "tablet")), login(registry, ("ada", "phone"))
    assert registry.of("ada") == [phone, tablet]


def test_who_has_ended_is_no_session_of_its_user_and_leaves_nothing() -> None:
    registry = Registry("boot", CLOCK)
    keys: list[SessionKey] = ["ada", ("ada", "phone"), ("ada", "tablet"), ("ada", "desk")]
    sessions = [login(registry, key) for key in keys]
    left = list(sessions)
    for session in (sessions[2], sessions[0], sessions[3], sessions[1]):
        registry.end(session, Code.LOGOUT, 20.0)
        left.remove(session)
        assert registry.of("ada") == left
    assert not registry._devices
