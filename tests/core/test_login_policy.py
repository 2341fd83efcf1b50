"""Logins: while the server stops, and too many sessions of a user."""

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.core.login_policy import SessionQuota
from presence.protocol import Code, Kind
from tests.support.worlds import TICK, T, World, ended

OLDEST_GO, NEWEST_IS_REFUSED = SessionQuota(2), SessionQuota(2, refuse_new=True)
PHONE = {"device_class": "phone"}
TOO_MANY = (Kind.GOODBYE, None, Code.SESSION_LIMIT)


def logins(world: World, *devices: str) -> list[int]:
    handles = []
    for device in devices:
        handles.append(world.login(device=device))
        world.now += 1
    return handles


def test_a_login_while_stopping_is_refused_with_a_retry_time() -> None:
    world = World()
    handle = world.sockets.connect()
    world.engine.refuse_logins(lambda: 1.5)
    world.sockets.feed(handle, protocol.encode(protocol.login("ada", id=7)))
    (answer,) = world.sockets.answers(handle)
    assert (answer.kind, answer.id) == (Kind.ERROR, 7)
    assert (answer.payload["code"], answer.payload["retry_after"]) == (Code.SERVER_DRAIN, 1.5)
    assert world.is_disconnected(handle)


# The quota of sessions per user


def test_the_oldest_session_ends_after_the_login() -> None:
    world = World(session_limit=OLDEST_GO)
    phone, tablet, desk = logins(world, "phone", "tablet", "desk")
    assert world.received(phone)[-1] == TOO_MANY
    assert [world.is_disconnected(each) for each in (phone, tablet, desk)] == [True, False, False]
    assert world.history()[2:] == [
        (Op.LOGIN, "ada", "desk", Code.LOGIN),
        ended(Code.SESSION_LIMIT, device="phone"),
    ]
    assert world.received(desk)[-1][0] == Kind.OK
    world.sockets.close(tablet)  # it counts during its grace, but gets no goodbye
    logins(world, "car")
    assert world.history()[5:] == [ended(Code.SESSION_LIMIT, device="tablet")]
    assert not world.is_disconnected(desk)


def test_the_newest_session_is_refused_with_a_reason() -> None:
    world = World(session_limit=NEWEST_IS_REFUSED)
    phone, tablet, desk = logins(world, "phone", "tablet", "desk")
    assert world.received(desk)[-1] == (Kind.ERROR, None, Code.SESSION_LIMIT)
    assert [world.is_disconnected(each) for each in (phone, tablet, desk)] == [False, False, True]
    assert len(world.changes) == 2
    assert world.engine.statistics().refused == {"session_limit": 1}


def test_a_session_in_its_grace_yields_to_a_new_device() -> None:
    world = World(session_limit=NEWEST_IS_REFUSED)
    phone, tablet = logins(world, "phone", "tablet")
    world.sockets.close(phone)
    (desk,) = logins(world, "desk")
    assert [world.is_disconnected(each) for each in (tablet, desk)] == [False, False]
    assert world.history()[2:] == [
        (Op.LOGIN, "ada", "desk", Code.LOGIN),
        ended(Code.SESSION_LIMIT, device="phone"),
    ]
    (late,) = logins(world, "phone")  # it has lost its place
    assert world.received(late)[-1] == (Kind.ERROR, None, Code.SESSION_LIMIT)


def test_of_several_lost_sessions_no_more_yield_than_have_to() -> None:
    limits = {"phone": SessionQuota(1, refuse_new=True)}
    world = World(session_limit=SessionQuota(3, refuse_new=True), class_limits=limits)
    desk, old, tablet = (
        world.login(device="desk"),
        world.login(device="old", **PHONE),
        world.login(device="tab"),
    )
    for handle in (desk, old, tablet):
        world.sockets.close(handle)
    world.login(device="new", **PHONE)
    assert world.history()[3:] == [
        (Op.LOGIN, "ada", "new", Code.LOGIN),
        ended(Code.SESSION_LIMIT, device="old"),
    ]


def test_a_refused_device_is_told_when_a_silent_session_has_ended() -> None:
    """A connection may be lost without a sign: its session ends by idle time-out."""
    world = World(session_limit=SessionQuota(1, refuse_new=True))
    world.login(device="laptop")
    world.pass_time(10)
    phone = world.login(device="phone")
    refusal = world.sockets.answers(phone)[-1].payload
    assert refusal["code"] == Code.SESSION_LIMIT
    assert refusal["retry_after"] == T - 10
    world.pass_time(refusal["retry_after"] + TICK)
    assert not world.is_disconnected(world.login(device="phone"))


@pytest.mark.parametrize("limit", [OLDEST_GO, NEWEST_IS_REFUSED])
def test_a_device_that_reconnects_is_counted_once(limit: SessionQuota) -> None:
    world = World(session_limit=limit)
    phone, tablet = logins(world, "phone", "tablet")
    again = world.login(device="phone")
    assert [world.is_disconnected(each) for each in (phone, tablet, again)] == [True, False, False]
    assert world.received(phone)[-1] == (Kind.GOODBYE, None, Code.REPLACED)
    assert world.engine.statistics().taken_over == 1


def test_a_limit_of_a_class_ends_or_refuses_sessions_of_that_class_only() -> None:
    world = World(session_limit=SessionQuota(4), class_limits={"phone": SessionQuota(1)})
    desk = world.login(device="desk")
    old = world.login(device="old", **PHONE)
    new = world.login(device="new", **PHONE)
    assert [world.is_disconnected(each) for each in (desk, old, new)] == [False, True, False]
    assert world.received(old)[-1] == TOO_MANY
    world.login(device="desk2")
    world.login(device="desk3")
    assert not world.is_disconnected(desk)
    last = world.login(device="desk4")  # beyond the limit of all sessions
    assert [world.is_disconnected(each) for each in (desk, new, last)] == [True, False, False]
    strict = World(class_limits={"phone": SessionQuota(1, refuse_new=True)})
    first, second = (strict.login(device=name, **PHONE) for name in ("first", "second"))
    assert [strict.is_disconnected(each) for each in (first, second)] == [False, True]
    assert strict.received(second)[-1] == (Kind.ERROR, None, Code.SESSION_LIMIT)
    assert not strict.is_disconnected(strict.login(device="third"))
