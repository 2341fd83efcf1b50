"""Too many sessions of a user, and devices that come and go all the time."""

import pytest

import protocol
from presence.changes import Op
from presence.session import SessionLimit
from protocol import Code, Kind
from tests.cells import brief
from tests.worlds import GRACE, MAX_GRACE, TICK, T, World, ended

SLOT = TICK / 2
OLDEST_GO, NEWEST_IS_REFUSED = SessionLimit(2), SessionLimit(2, refuses=True)


def logins(world: World, *devices: str) -> list[int]:
    handles = []
    for device in devices:
        handles.append(world.login(device=device))
        world.now += 1
    return handles


def last_word(world: World, handle: int) -> tuple[Kind, int | None, int | None]:
    return brief(world.sockets.answers(handle)[-1])


# How many sessions a user may have


def test_the_oldest_session_has_to_go_after_the_login_was_told() -> None:
    world = World(session_limit=OLDEST_GO)
    phone, tablet, desk = logins(world, "phone", "tablet", "desk")
    assert last_word(world, phone) == (Kind.GOODBYE, None, Code.SESSION_LIMIT)
    assert world.is_hung_up(phone)
    assert not world.is_hung_up(tablet)
    assert [(each.op, each.device, each.code) for each in world.changes[2:]] == [
        (Op.LOGIN, "desk", Code.LOGIN),
        (Op.END, "phone", Code.SESSION_LIMIT),
    ]
    assert last_word(world, desk)[0] == Kind.OK


def test_a_session_in_its_grace_counts_and_has_nobody_to_tell() -> None:
    world = World(session_limit=OLDEST_GO)
    phone, tablet = logins(world, "phone", "tablet")
    world.sockets.close(phone)
    logins(world, "desk")
    assert world.story()[3:] == [ended(Code.SESSION_LIMIT, device="phone")]
    assert not world.is_hung_up(tablet)


def test_the_newest_is_refused_and_told_why() -> None:
    world = World(session_limit=NEWEST_IS_REFUSED)
    phone, tablet, desk = logins(world, "phone", "tablet", "desk")
    assert last_word(world, desk) == (Kind.ERROR, None, Code.SESSION_LIMIT)
    assert [world.is_hung_up(each) for each in (phone, tablet, desk)] == [False, False, True]
    assert len(world.changes) == 2
    assert world.core.statistics().refused == {"session_limit": 1}


@pytest.mark.parametrize("limit", [OLDEST_GO, NEWEST_IS_REFUSED])
def test_a_device_that_comes_back_is_not_one_more(limit: SessionLimit) -> None:
    world = World(session_limit=limit)
    phone, tablet = logins(world, "phone", "tablet")
    again = world.login(device="phone")
    assert [world.is_hung_up(each) for each in (phone, tablet, again)] == [True, False, False]
    assert last_word(world, phone) == (Kind.GOODBYE, None, Code.REPLACED)


def test_a_session_that_is_too_many_elsewhere_ends_for_good() -> None:
    world = World()
    (phone,) = logins(world, "phone")
    name = world.changes[0].session
    assert not world.core.endings.limit(("ada", "phone"), "another")
    assert world.core.endings.limit(("ada", "phone"), name)
    assert last_word(world, phone) == (Kind.GOODBYE, None, Code.SESSION_LIMIT)
    assert world.story()[1:] == [ended(Code.SESSION_LIMIT, device="phone")]
    assert not world.core.endings.limit(("ada", "phone"), name), "it is gone"


# Who comes and goes


def flap(world: World, times: int, gone_s: float, here_s: float) -> None:
    for _ in range(times):
        handle = world.login()
        world.pass_time(here_s)
        world.sockets.close(handle)
        world.pass_time(gone_s)


def test_the_end_of_who_flapped_says_how_long_it_was_waited_for() -> None:
    world = World(returns=6)
    flap(world, 7, gone_s=2.0, here_s=1.0)
    world.sockets.close(world.login())
    lost = world.now
    world.pass_time(2 * GRACE - SLOT)
    assert world.changes[-1].op is Op.LOGIN
    world.pass_time(TICK)
    end = world.changes[-1]
    assert (end.op, end.code, end.grace_ms) == (Op.END, Code.CLOSED, 2 * GRACE * 1000)
    assert 2 * GRACE <= end.at - lost <= 2 * GRACE + SLOT


def test_no_grace_goes_beyond_the_idle_deadline() -> None:
    world = World(returns=6)
    flap(world, 20, gone_s=1.0, here_s=1.0)
    handle = world.login()
    world.pass_time(10.0)
    world.sockets.close(handle)
    world.pass_time(T - 10.0 + SLOT)
    assert world.changes[-1].op is Op.END
    assert world.changes[-1].grace_ms == MAX_GRACE * 1000


def test_a_return_on_another_node_counts() -> None:
    world = World(returns=2)
    for _ in range(3):
        world.sockets.close(world.login())
        world.pass_time(1.0)
        world.core.endings.displace("ada", world.registry.session_id(world.session()))
        assert world.changes[-1].grace_ms == 0
        world.pass_time(1.0)
    world.sockets.close(world.login())
    world.pass_time(GRACE + TICK)
    assert world.changes[-1].op is Op.LOGIN
    world.pass_time(GRACE)
    assert world.changes[-1].grace_ms == 2 * GRACE * 1000


def test_a_logout_has_no_grace_however_often_its_device_returned() -> None:
    world = World(returns=6)
    flap(world, 20, gone_s=1.0, here_s=1.0)
    handle = world.login()
    world.sockets.feed(handle, protocol.encode(protocol.logout()))
    assert world.changes[-1].op is Op.END
    assert world.changes[-1].grace_ms == 0
