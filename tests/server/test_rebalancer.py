"""Orders to send clients away, in virtual time."""

import math
from typing import Any, cast

import pytest
import structlog
import trio

from presence.common.runtime import Runtime, WakeEvent
from presence.protocol import Code
from presence.server.rebalancer import COMMAND_KEPT_S, MAX_RETURN_DELAY_S, MAX_SENT_PER_TURN, Rebalancer
from presence.store.control_messages import RebalanceOrder, rebalance_text
from presence.store.embedded import EmbeddedRedis
from tests.server.test_control_listener import KEYS, serving
from tests.support.waiting import until
from tests.support.worlds import TICK, T, World

ORDER = RebalanceOrder("ops 1", 4, 2.0, 0.0)
STOP = RebalanceOrder("", 0, 1.0, 0.0)


class WorldRuntime:
    """Waits pass the time of a world; a wait without an end is one of trio."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def sleep(self, seconds: float) -> None:
        self._world.now += seconds
        self._world.run_slot()
        await trio.lowlevel.checkpoint()

    def wake_event(self) -> WakeEvent:
        return WorldEvent(self._world)


class WorldEvent:
    def __init__(self, world: World) -> None:
        self._world = world
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        await trio.lowlevel.checkpoint()
        if timeout_s == math.inf:
            await self._event.wait()
        elif not self._event.is_set():
            self._world.pass_time(timeout_s)
        is_set, self._event = self._event.is_set(), trio.Event()
        return is_set


class Place:
    """A world with clients, and a rebalancer that runs."""

    def __init__(self, clients: int = 8) -> None:
        self.world = World()
        self.handles = [self.world.login(f"u{n}") for n in range(clients)]
        for handle in self.handles:
            self.world.sockets.answers(handle)
        runtime = cast(Runtime, WorldRuntime(self.world))
        self.rebalancer = Rebalancer(self.world.engine, self.world.clock, runtime)

    def sent_away(self) -> list[int]:
        goodbye = b"server_drain"
        return [handle for handle in self.handles if goodbye in self.world.sockets.sent[handle]]

    async def obey(self, *orders: RebalanceOrder) -> None:
        """Give orders, and let the rebalancer run until it waits for others."""
        self.rebalancer.obey(orders)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.rebalancer.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()


@pytest.fixture
def place() -> Place:
    return Place()


async def test_so_many_clients_are_sent_away_and_may_return(place: Place) -> None:
    await place.obey(ORDER)
    away = place.sent_away()
    assert len(away) == place.rebalancer.sent_away == 4
    for handle in away:
        (goodbye,) = place.world.sockets.answers(handle)
        assert (goodbye.payload["code"], goodbye.payload["reconnect"]) == (Code.SERVER_DRAIN, True)
        assert 0 < goodbye.payload["retry_after"] <= MAX_RETURN_DELAY_S


async def test_nobody_goes_offline_before_the_idle_time_out(place: Place) -> None:
    begun = place.world.now
    await place.obey(ORDER)
    changes = len(place.world.changes)
    place.world.pass_time(begun + T - place.world.now - TICK)
    assert len(place.world.changes) == changes == 8  # logins
    place.world.pass_time(2 * TICK)
    assert {change.code for change in place.world.changes[8:]} == {Code.IDLE_TIMEOUT}


async def test_clients_leave_evenly(place: Place) -> None:
    place.rebalancer.obey([ORDER])
    left = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.rebalancer.run)
        begun = place.world.now
        while place.world.now < begun + 2:
            left.append((place.world.now - begun, len(place.sent_away())))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert all(abs(count - 4 * seconds / 2) <= 1 for seconds, count in left if seconds)


async def test_those_who_came_since_the_command_began_stay(place: Place) -> None:
    place.world.pass_time(5)
    place.world.beat(*place.handles)
    newer = [place.world.login(f"newer{n}") for n in range(4)]
    await place.obey(ORDER._replace(clients=100, min_age_s=2.0))
    assert sorted(place.sent_away()) == place.handles
    assert not any(map(place.world.is_disconnected, newer))


async def test_silent_clients_stay_because_they_could_not_return_in_time(place: Place) -> None:
    place.world.pass_time(0.6 * T)
    place.world.beat(*place.handles[:2])
    await place.obey(ORDER)
    assert place.sent_away() == place.handles[:2]


async def test_a_client_that_has_lost_its_connection_is_not_counted(place: Place) -> None:
    for handle in place.handles[2:]:
        place.world.sockets.close(handle)
    await place.obey(ORDER)
    assert place.rebalancer.sent_away == 2


async def test_a_turn_is_bounded() -> None:
    place = Place(10 * MAX_SENT_PER_TURN)
    place.rebalancer.obey([ORDER._replace(clients=10**6, over_s=1.0)])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.rebalancer.run)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert place.rebalancer.sent_away <= 2 * MAX_SENT_PER_TURN
        nursery.cancel_scope.cancel()


async def test_the_next_order_of_a_command_replaces_the_one_before(place: Place) -> None:
    await place.obey(ORDER, ORDER._replace(clients=2))
    assert place.rebalancer.sent_away == 2


async def test_another_command_is_refused_while_one_is_underway(place: Place) -> None:
    await place.obey(ORDER, ORDER._replace(command="ops 2", clients=1))
    assert place.rebalancer.sent_away == 4


async def test_a_command_that_gives_no_orders_is_over_after_a_while(place: Place) -> None:
    begun = place.world.now
    await place.obey(ORDER)
    assert place.world.now >= begun + COMMAND_KEPT_S
    assert place.rebalancer.command is None


@pytest.mark.parametrize("stop", [STOP, STOP._replace(command="ops 1")])
async def test_a_stopped_command_is_not_obeyed_again(place: Place, stop: RebalanceOrder) -> None:
    await place.obey(ORDER, stop, ORDER)
    assert (place.rebalancer.command, place.rebalancer.sent_away) == (None, 0)
    await place.obey(ORDER._replace(command="ops 2"))
    assert place.rebalancer.sent_away == 4


async def test_a_command_stops_no_other(place: Place) -> None:
    await place.obey(ORDER, STOP._replace(command="ops 2"))
    assert place.rebalancer.sent_away == 4


async def test_begin_and_end_are_logged(place: Place) -> None:
    with structlog.testing.capture_logs() as logs:
        await place.obey(ORDER, ORDER)
        place.rebalancer.obey([STOP])
    lines: list[dict[str, Any]] = [{**line} for line in logs]
    assert lines == [
        {"event": "rebalance started", "by": "ops 1", "log_level": "info"},
        {"event": "rebalance finished", "by": "ops 1", "sent_away": 4, "log_level": "info"},
    ]


async def test_a_client_moves_to_another_server_without_an_event(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        await until(lambda: pair.is_subscribed(0))
        phone = await pair.log_in(0)
        pair.client.publish(pair.channel(0), rebalance_text(ORDER._replace(clients=1)))
        (goodbye,) = await phone.rest()
        assert goodbye.payload["code"] == Code.SERVER_DRAIN
        node = pair.record()["node"]
        await pair.log_in(1)
        assert pair.record()["node"] != node
        assert pair.client.xlen(KEYS.events(0)) == 1
        description = pair.servers[0].node.description()
        assert (description["sent_away"], description["rebalance"]) == (1, "ops 1")
