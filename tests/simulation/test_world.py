"""What the simulation is made of: virtual time, machines that stop, connections that fail, its own story."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import redis

from tests.simulation.draw import draw_plan
from tests.simulation.machine import Agenda, Machine, NodeClock
from tests.simulation.observed import ObservedRedis
from tests.simulation.plan import FaultKind, SimulationPlan
from tests.simulation.runs import run_plan
from tests.simulation.runtime import Task, VirtualRuntime
from tests.simulation.shrink import shrink
from tests.simulation.wire import ConnectionFaults, RedisConnection


@pytest.fixture
def agenda() -> Agenda:
    return Agenda()


def machine_of(agenda: Agenda, rate: float = 1.0) -> Machine:
    return Machine(agenda, NodeClock(agenda, rate, 0.0), Random(1))


def short(seed: int, end_at: float) -> SimulationPlan:
    """A plan that ends in the middle of things."""
    return replace(draw_plan(seed), end_at=end_at)


def test_a_fast_clock_wakes_its_tasks_early(agenda: Agenda) -> None:
    machine, woken = machine_of(agenda, rate=1.25), []

    async def sleep() -> None:
        await VirtualRuntime(machine).sleep(10.0)
        woken.append(agenda.now)

    Task(machine, sleep())
    agenda.run(20.0)
    assert woken == pytest.approx([8.0])


def test_a_stopped_machine_does_everything_when_it_goes_on(agenda: Agenda) -> None:
    machine, done = machine_of(agenda), []
    machine.stop_for(5.0)
    for number in range(9):
        machine.post_after(1.0, lambda number=number: done.append((agenda.now, number)))  # type: ignore[misc]
    agenda.run(10.0)
    assert {at for at, _ in done} == {5.0}
    assert sorted(number for _, number in done) == list(range(9))
    assert [number for _, number in done] != list(range(9))  # in no certain order, as in trio


def test_a_bell_is_heard_once(agenda: Agenda) -> None:
    machine, seen = machine_of(agenda), []
    bell = VirtualRuntime(machine).wake_event()

    async def listen() -> None:
        while True:
            rung = await bell.wait(2.0)
            seen.append((rung, round(agenda.now, 3)))

    Task(machine, listen())
    agenda.at(1.0, bell.set)
    agenda.run(6.0)
    assert seen == [(True, 1.0), (False, 3.0), (False, 5.0)]


def trip(
    agenda: Agenda, faults: ConnectionFaults, *, restart_at: float | None = None
) -> tuple[list[float], Any, float]:
    """One round trip: when Redis performed it, what its caller got, and when."""
    performed: list[float] = []
    outcomes: list[tuple[Any, float]] = []
    server = ObservedRedis(agenda, "test")
    connection = RedisConnection(agenda, server, Random(3))
    connection.faults = faults
    machine = machine_of(agenda)

    def perform() -> list[Any]:
        performed.append(agenda.now)
        return ["done"]

    async def call() -> None:
        outcome: Any
        try:
            outcome = await VirtualRuntime(machine).loop_caller().call(lambda: connection.deliver(perform))
        except redis.RedisError as error:
            outcome = type(error)
        outcomes.append((outcome, round(agenda.now, 1)))

    Task(machine, call())
    if restart_at is not None:
        agenda.at(restart_at, server.restart)
    agenda.run(100.0)
    (outcome,) = outcomes
    return (performed, *outcome)


@pytest.mark.parametrize(
    ("faults", "times", "outcome", "at"),
    [
        pytest.param(ConnectionFaults(), 1, ["done"], 0.0, id="a good day"),
        pytest.param(ConnectionFaults(lose_request=1.0), 0, redis.TimeoutError, 2.0, id="a lost request"),
        pytest.param(ConnectionFaults(lose_reply=1.0), 1, redis.TimeoutError, 2.0, id="a lost reply"),
        pytest.param(ConnectionFaults(twice_share=1.0), 2, ["done"], 0.0, id="performed twice"),
    ],
)
def test_a_round_trip(agenda: Agenda, faults: ConnectionFaults, times: int, outcome: Any, at: float) -> None:
    performed, *came = trip(agenda, faults)
    assert (len(performed), *came) == (times, outcome, at)


def test_a_late_call_is_performed_after_its_caller_has_given_up(agenda: Agenda) -> None:
    performed, *came = trip(agenda, ConnectionFaults(late_share=1.0, late_s=(30.0, 40.0)))
    assert came == [redis.TimeoutError, 2.0]
    assert [30.0 < at < 40.0 for at in performed] == [True]


def test_a_restart_of_redis_ends_the_call_under_way(agenda: Agenda) -> None:
    assert trip(agenda, ConnectionFaults(), restart_at=0.0001) == ([], redis.ConnectionError, 0.0)


def test_a_seed_is_drawn_alike_each_time() -> None:
    assert draw_plan(7) == draw_plan(7) != draw_plan(8)


def test_each_seed_has_five_faults_of_three_kinds_and_every_kind_is_drawn() -> None:
    plans = [draw_plan(seed).faults for seed in range(100)]
    assert all(len(faults) >= 5 and len({fault.kind for fault in faults}) >= 3 for faults in plans)
    assert {fault.kind for faults in plans for fault in faults} == set(FaultKind)


def test_a_seed_tells_the_same_story_again() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        run_plan(short(5, 40.0), log=story.append)
    assert len(stories[0]) > 50
    assert stories[0] == stories[1]


def test_a_failing_plan_is_shrunk() -> None:
    guard = "script-decides-transitions"
    plan = short(0, 4.0)
    assert run_plan(plan, guard=guard).violations
    smaller = shrink(plan, guard=guard)
    assert run_plan(smaller, guard=guard).violations
    assert not smaller.faults
    assert len(smaller.devices) <= 2 < len(plan.devices)
