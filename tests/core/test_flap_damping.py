"""The grace of devices that reconnect frequently: the table, and sessions that have it."""

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.core.flap_damping import MINUTE_S, FlapDamping
from presence.protocol import Code
from tests.support.worlds import GRACE, MAX_GRACE, TICK, T, World

SLOT = TICK / 2


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
    world.sockets.close(world.login())
    world.engine.terminator.supersede("ada", world.registry.session_id(world.session()))
    assert (world.changes[-1].op, world.changes[-1].grace_ms) == (Op.END, 0), "it has returned"
