"""What is due: the poll before expiry, what is measured, and a mass expiry."""

from collections.abc import Callable

import pytest
import trio

from presence import protocol
from presence.core.changes import Op
from presence.core.expiry import MAX_EXPIRED_PER_TURN
from presence.protocol import Code
from presence.server.ticker import Ticker
from tests.support.worlds import LOGIN, START, TICK, T, World, ended

SLOT = TICK / 2


@pytest.fixture
def world() -> World:
    return World()


def test_only_the_delay_of_idle_time_outs_is_measured(world: World) -> None:
    world.sockets.close(world.login("bob"))
    world.send(world.login("eve"), protocol.logout())
    world.now += 0.25
    world.login()
    world.now = START
    world.pass_time(T + TICK)
    assert len(world.registry) == 0
    assert world.delays.report()["counts"] == [0, 1, 0, 0]
    assert world.delays.report()["sum"] == pytest.approx(0.25)


def until_due(world: World) -> None:
    """Let time pass until sessions from the start are due in the next slot."""
    world.pass_time(T - SLOT)
    world.now += SLOT


def test_an_unread_packet_rescues_its_session(world: World) -> None:
    world.sockets.arrive(world.login(), protocol.KEEPALIVE)
    until_due(world)
    world.pass_time(TICK)
    assert world.history() == [LOGIN]
    assert world.engine.statistics().saved_by_poll == 1


@pytest.mark.parametrize(
    ("action", "changes"),
    [
        (lambda world: world.sockets.feed(0, protocol.KEEPALIVE), [LOGIN]),
        (lambda world: world.login(), [LOGIN, LOGIN]),
        (lambda world: world.send(0, protocol.logout()), [LOGIN, ended(Code.LOGOUT)]),
        (lambda world: world.sockets.close(0), [LOGIN, ended(Code.CLOSED)]),
        (
            lambda world: world.engine.terminator.supersede("ada", world.changes[0].session),
            [LOGIN, ended(Code.REPLACED)],
        ),
    ],
    ids=["keepalive", "login", "logout", "close, with no grace beyond the deadline", "displacement"],
)
def test_a_packet_read_during_expiry_rescues_its_session(
    world: World, action: Callable[[World], object], changes: list[object]
) -> None:
    world.login()
    until_due(world)
    world.sockets.needs_a_turn = True

    def run_reader() -> None:
        assert world.needs_reader_turn
        action(world)

    world.run_slot(between=run_reader)
    assert world.history() == changes


async def test_a_mass_expiry_lets_other_tasks_run() -> None:
    users, turns = 20 * MAX_EXPIRED_PER_TURN, 0
    world = World()
    for number in range(users):
        world.login(f"user-{number}")
    world.now += T + TICK
    engine = world.engine
    ticker = Ticker(engine.expiry, engine.slot_done, world.slot_clock, world.guard, world.clock, credit=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticker.run)
        before = users
        while len(world.registry):
            await trio.lowlevel.checkpoint()
            assert before - len(world.registry) <= 2 * MAX_EXPIRED_PER_TURN, "they expire in random order"
            before, turns = len(world.registry), turns + 1
        nursery.cancel_scope.cancel()
    assert [each.op for each in world.changes[users:]] == [Op.END] * users
    assert turns >= users / MAX_EXPIRED_PER_TURN / 2
