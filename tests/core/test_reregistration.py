"""Registrations for a resync, and sessions that are stale."""

import pytest

from presence import protocol
from presence.core.changes import Op
from presence.protocol import Code
from tests.support.worlds import LOGIN, TICK, T, World


@pytest.fixture
def world() -> World:
    return World()


def test_registrations_that_are_read_later_have_the_same_time(world: World) -> None:
    handles = [world.login(uid) for uid in ("ada", "bob", "eve")]
    moment = int(world.changes[0].at_ms)
    registrations = world.engine.registration.registrations([*world.registry])
    first = next(registrations)
    world.now += 1.0
    world.login("new")
    world.login("eve")
    world.sockets.feed(handles[1], protocol.encode(protocol.logout()))
    after = list(registrations)
    assert [each.session for each in (first, *after)] == [each.session for each in world.changes[:3]]
    assert {each.at_ms for each in (first, *after)} == {moment}, "before the end that follows"


def silent_through_a_stall(world: World) -> int:
    """Log in and stay silent for longer than T, kept alive by a credit."""
    handle = world.login()
    world.pass_time(T - 5)
    world.now += 20.0
    world.run_slot()
    assert len(world.registry) == 1
    return handle


def test_a_stale_session_registers_with_its_next_packet(world: World) -> None:
    handle = silent_through_a_stall(world)
    assert [each.op for each in world.engine.registration.registrations([*world.registry])] == [Op.STALE]
    world.run_slot()
    assert world.history() == [LOGIN], "still silent"
    world.beat(handle)
    world.run_slot()
    world.run_slot()
    assert world.history() == [LOGIN, (Op.REGISTER, "ada", "", int(Code.RETURNED))], "one registration"


def test_redis_should_have_neither_a_stale_session_nor_one_that_has_ended_meanwhile(world: World) -> None:
    silent_through_a_stall(world)
    handle = world.login("bob")
    world.login("eve")
    registration = world.engine.registration
    assert [each.uid for each in registration.registrable_sessions()] == ["ada", "bob", "eve"]
    list(registration.registrations([*world.registry]))
    names = registration.registrable_sessions()
    world.send(handle, protocol.logout())
    assert [each.uid for each in names] == ["eve"]


def test_a_session_with_an_unread_packet_is_not_stale(world: World) -> None:
    world.sockets.arrive(silent_through_a_stall(world), protocol.KEEPALIVE)
    other = World()
    other.login()
    other.now += T + TICK / 4  # not ended yet, and its packet may be within the batching window
    for each in (world, other):
        assert [change.op for change in each.engine.registration.registrations([*each.registry])] == [
            Op.REGISTER
        ]


def test_a_session_that_logs_out_while_its_connection_is_polled_ends(world: World) -> None:
    handle = silent_through_a_stall(world)
    world.sockets.arrive(handle, protocol.encode(protocol.logout()))
    list(world.engine.registration.registrations([*world.registry]))
    assert world.history() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]


def test_a_superseded_stale_session_does_not_register(world: World) -> None:
    silent_through_a_stall(world)
    assert [each.op for each in world.engine.registration.registrations([*world.registry])] == [Op.STALE]
    world.login()
    world.pass_time(3.0)
    assert world.history() == [LOGIN, LOGIN]
