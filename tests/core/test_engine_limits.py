"""Too many sessions of a user, too many packets, and devices that reconnect frequently."""

import pytest

from presence import protocol
from presence.core.admission import PacketRate
from presence.core.changes import Op
from presence.core.flap_damping import MINUTE_S, FlapDamping
from presence.core.login import SessionQuota
from presence.protocol import Code, Kind
from tests.support.worlds import GRACE, MAX_GRACE, TICK, T, World, ended

SLOT = TICK / 2
OLDEST_GO, NEWEST_IS_REFUSED = SessionQuota(2), SessionQuota(2, refuse_new=True)
PHONE = {"device_class": "phone"}
TOO_MANY = (Kind.GOODBYE, None, Code.SESSION_LIMIT)


def logins(world: World, *devices: str) -> list[int]:
    handles = []
    for device in devices:
        handles.append(world.login(device=device))
        world.now += 1
    return handles


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


def test_a_session_beyond_the_cluster_wide_quota_ends_for_good() -> None:
    world = World()
    (phone,) = logins(world, "phone")
    name = world.changes[0].session
    assert not world.engine.terminator.limit(("ada", "phone"), "another")
    assert world.engine.terminator.limit(("ada", "phone"), name)
    assert world.received(phone)[-1] == TOO_MANY
    assert world.history()[1:] == [ended(Code.SESSION_LIMIT, device="phone")]
    assert not world.engine.terminator.limit(("ada", "phone"), name), "it has ended"


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


@pytest.mark.parametrize(("may_return", "retry_after"), [(False, None), (True, T)])
def test_a_session_that_was_beyond_the_limit_when_it_began_may_return_later(
    may_return: bool, retry_after: float | None
) -> None:
    world = World()
    phone = world.login(device="phone")
    world.engine.terminator.limit(("ada", "phone"), world.changes[0].session, may_return=may_return)
    goodbye = world.sockets.answers(phone)[-1].payload
    assert (goodbye["code"], goodbye["reconnect"]) == (Code.SESSION_LIMIT, may_return)
    assert goodbye.get("retry_after") == retry_after


# Reconnects


def flap(world: World, times: int) -> int:
    """Connect and disconnect that often; return another connection."""
    for _ in range(times):
        handle = world.login()
        world.pass_time(1.0)
        world.sockets.close(handle)
        world.pass_time(1.0)
    return world.login()


def test_the_end_of_a_flapping_session_has_its_extended_grace() -> None:
    world = World(returns=6)
    world.sockets.close(flap(world, 7))
    lost = world.now
    world.pass_time(2 * GRACE - SLOT)
    assert world.changes[-1].op is Op.LOGIN
    world.pass_time(TICK)
    end = world.changes[-1]
    assert (end.op, end.code, end.grace_ms) == (Op.END, Code.CLOSED, 2 * GRACE * 1000)
    assert 2 * GRACE <= end.at - lost <= 2 * GRACE + SLOT


def test_no_grace_exceeds_the_idle_deadline_and_a_logout_has_none() -> None:
    world = World(returns=6)
    handle = flap(world, 20)
    world.pass_time(10.0)
    world.sockets.close(handle)
    world.pass_time(T - 10.0 + SLOT)
    assert (world.changes[-1].op, world.changes[-1].grace_ms) == (Op.END, MAX_GRACE * 1000)
    world.send(world.login(), protocol.logout())
    assert (world.changes[-1].op, world.changes[-1].grace_ms) == (Op.END, 0)


def test_a_return_on_another_node_counts() -> None:
    world = World(returns=2)
    for _ in range(3):
        world.sockets.close(world.login())
        world.pass_time(1.0)
        world.engine.terminator.supersede("ada", world.registry.session_id(world.session()))
        assert world.changes[-1].grace_ms == 0
        world.pass_time(1.0)
    world.sockets.close(world.login())
    world.pass_time(GRACE + TICK)
    assert world.changes[-1].op is Op.LOGIN
    world.pass_time(GRACE)
    assert world.changes[-1].grace_ms == 2 * GRACE * 1000


# Packet floods

RATE, BURST = 10, 50
KEEPALIVES = protocol.KEEPALIVE * 2  # in one read


def test_a_user_beyond_the_packet_rate_is_disconnected_and_gets_no_new_burst() -> None:
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada = world.login()
    for number in range(BURST):  # the login does not count
        world.sockets.feed(ada, protocol.encode(protocol.keepalive(number)))
    assert not world.is_disconnected(ada)
    world.sockets.feed(ada, protocol.encode(protocol.keepalive(99)))
    *answers, goodbye = world.sockets.answers(ada)
    assert {each.kind for each in answers} == {Kind.OK}
    assert (goodbye.kind, goodbye.payload["code"]) == (Kind.GOODBYE, Code.RATE_LIMITED)
    assert goodbye.payload["reconnect"] is True
    assert goodbye.payload["retry_after"] >= 1
    assert world.engine.statistics().packet_floods == 1
    assert world.engine.statistics().refused == {"rate_limited": 1}
    back = world.login()
    world.sockets.feed(back, KEEPALIVES)
    assert world.is_disconnected(back)
    world.now += 2 * BURST / RATE
    forgiven = world.login()
    world.sockets.feed(forgiven, KEEPALIVES * (BURST // 2 - 1))
    assert not world.is_disconnected(forgiven)
    world.pass_time(2 * BURST / RATE)
    assert world.engine.statistics().packet_buckets_kept == 0


def test_keepalives_that_are_read_one_by_one_are_counted() -> None:
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada, bob = world.login(), world.login("bob")
    for _ in range(BURST + 1):
        assert not world.is_disconnected(ada)
        world.now += 0.001
        world.beat(ada)
    goodbye = world.sockets.answers(ada)[-1].payload
    assert (goodbye["code"], goodbye["reconnect"]) == (Code.RATE_LIMITED, True)
    assert goodbye["retry_after"] >= 1
    assert world.engine.statistics().packet_floods == 1
    assert world.history()[-1][0] is Op.LOGIN, "it may return within its grace"
    world.beat(bob)
    assert not world.is_disconnected(bob)


def test_keepalives_at_usual_intervals_are_not_counted() -> None:
    world = World(packet_rate=PacketRate(1, 1))
    ada = world.login()
    for _ in range(20):
        world.now += 1.0
        world.beat(ada)
    assert not world.is_disconnected(ada)
    assert world.engine.statistics().packet_buckets_kept == 0


def test_bytes_that_complete_no_packet_are_counted_too() -> None:
    """Each read costs the server as much as a packet, even if it has few bytes."""
    world = World(packet_rate=PacketRate(RATE, BURST))
    ada = world.login()
    packet = protocol.encode(protocol.message("bob", "x" * 2 * BURST))
    for number, byte in enumerate(packet[: BURST + 2]):
        assert world.is_disconnected(ada) is (number > BURST)
        world.sockets.feed(ada, bytes([byte]))
    assert world.engine.statistics().refused == {"rate_limited": 1}


# Flap damping


def flapping(**others: int) -> FlapDamping:
    return FlapDamping(GRACE, 6, MAX_GRACE, **others)


def graces(table: FlapDamping, times: int, *, every_s: float, begin: float = 0.0) -> list[float]:
    """Lose the connection repeatedly, and return after half of the interval; return each grace."""
    found = []
    for number in range(times):
        at = begin + number * every_s
        found.append(table.connection_lost("ada", at))
        table.reconnected("ada", at + every_s / 2)
    return found


@pytest.mark.parametrize(
    ("times", "every_s", "expected"),
    [(13, 3.0, [GRACE] * 7 + [10.0, 20.0, 40.0, MAX_GRACE, MAX_GRACE, MAX_GRACE]), (60, 10.0, [GRACE] * 60)],
)
def test_the_seventh_return_within_a_minute_doubles_the_next_grace_and_each_later_one_again(
    times: int, every_s: float, expected: list[float]
) -> None:
    assert graces(flapping(), times, every_s=every_s) == expected


def test_each_quiet_minute_halves_the_grace_again() -> None:
    table = flapping()
    graces(table, 10, every_s=3.0)  # 20 s; the next would be 40 s without the last return
    last_return = 9 * 3.0 + 1.5
    assert table.connection_lost("ada", last_return + 1) == MAX_GRACE
    table.reconnected("ada", last_return + 2)
    quiet_from = last_return + 2
    assert table.connection_lost("ada", quiet_from + MINUTE_S - 1) == MAX_GRACE
    assert table.connection_lost("ada", quiet_from + MINUTE_S) == 40.0
    assert table.connection_lost("ada", quiet_from + 2 * MINUTE_S) == 20.0
    assert table.connection_lost("ada", quiet_from + 60 * MINUTE_S) == GRACE


def test_a_login_without_a_known_loss_is_no_return() -> None:
    table = flapping()
    for at in range(50):
        table.reconnected("ada", float(at))
    assert table.connection_lost("ada", 50.0) == GRACE
    table.reconnected("ada", 51.0)
    for at in range(52, 100):
        table.reconnected("ada", float(at))
    assert table.connection_lost("ada", 100.0) == GRACE


def test_an_end_has_an_extended_grace_only() -> None:
    table = flapping()
    table.connection_lost("ada", 0.0)
    assert table.extended_grace_ms("ada") == 0
    table = flapping()
    graces(table, 7, every_s=3.0)
    assert table.extended_grace_ms("ada") == 0, "it has returned"
    assert table.connection_lost("ada", 21.0) == 10.0
    assert table.extended_grace_ms("ada") == 10_000
    assert table.extended_grace_ms("bob") == 0
    assert table.connection_lost(("ada", "phone"), 21.0) == GRACE, "another device"
    assert table.statistics().lengthened == 1


@pytest.mark.parametrize(
    "off",
    [FlapDamping(GRACE, 0, MAX_GRACE), FlapDamping(0.0, 6, MAX_GRACE), FlapDamping(GRACE, 6, GRACE - 1)],
)
def test_without_damping_every_grace_is_the_same_and_the_table_stays_empty(off: FlapDamping) -> None:
    usual = off.connection_lost("bob", 0.0)
    assert set(graces(off, 30, every_s=1.0)) == {usual}
    assert off.statistics().known == 0


def test_the_table_is_bounded_and_drops_the_oldest_loss() -> None:
    table = flapping(size=3)
    graces(table, 13, every_s=3.0)
    for at, key in enumerate(["bob", "eve"]):
        table.connection_lost(key, 40.0 + at)
    assert table.connection_lost("ada", 42.0) > GRACE
    table.connection_lost("joe", 43.0)
    assert table.statistics().known == 3
    assert table.statistics().forgotten == 1
    assert table.connection_lost("ada", 44.0) > GRACE, "bob was dropped"
    for at, key in enumerate(["bob", "eve", "joe"]):
        table.connection_lost(key, 45.0 + at)
    assert table.connection_lost("ada", 48.0) == GRACE
