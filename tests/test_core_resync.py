"""What the core does for others: registrations for a resync, displacements, the farewell of a stop."""

import protocol
from presence.changes import Op
from protocol import Code, Kind
from tests.cells import brief
from tests.worlds import LOGIN, TICK, T, World


def test_registrations_are_of_one_moment_though_they_are_made_later() -> None:
    world = World()
    handles = [world.login(uid) for uid in ("ada", "bob", "eve")]
    moment = int(world.changes[0].at_ms)
    registrations = world.core.registrations([*world.registry])
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
    world.run_tick()
    assert len(world.registry) == 1
    return handle


def test_a_session_not_heard_within_t_registers_with_its_next_packet() -> None:
    world = World()
    handle = silent_through_a_stall(world)
    assert [each.op for each in world.core.registrations([*world.registry])] == [Op.UNHEARD]
    world.run_tick()
    assert world.story() == [LOGIN], "still silent"
    world.beat(handle)
    world.run_tick()
    world.run_tick()
    assert world.story() == [LOGIN, (Op.REGISTER, "ada", "", int(Code.RETURNED))], "once"


def test_a_session_whose_packet_lies_unread_is_vouched_for() -> None:
    world = World()
    handle = silent_through_a_stall(world)
    world.sockets.arrive(handle, protocol.KEEPALIVE)
    assert [each.op for each in world.core.registrations([*world.registry])] == [Op.REGISTER]


def test_a_session_due_at_the_next_tick_is_vouched_for() -> None:
    world = World()
    world.login()
    world.now += T + TICK / 4  # not ended yet, and its packet may be within the batching window
    assert [each.op for each in world.core.registrations([*world.registry])] == [Op.REGISTER]


def test_who_left_while_his_connection_is_looked_at_ends_after_all() -> None:
    world = World()
    handle = silent_through_a_stall(world)
    world.sockets.arrive(handle, protocol.encode(protocol.logout()))
    list(world.core.registrations([*world.registry]))
    assert world.story() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]


def test_a_stale_session_that_is_replaced_does_not_register() -> None:
    world = World()
    silent_through_a_stall(world)
    assert [each.op for each in world.core.registrations([*world.registry])] == [Op.UNHEARD]
    world.login()
    world.pass_time(3.0)
    assert world.story() == [LOGIN, LOGIN]


def test_a_logout_that_lies_unread_at_the_stop_counts() -> None:
    world = World()
    handle = world.login()
    world.sockets.answers(handle)
    world.sockets.arrive(handle, protocol.encode(protocol.logout(id=2)))
    world.core.endings.farewell(
        list(world.registry), lambda: protocol.encode(protocol.goodbye(Code.SERVER_DRAIN))
    )
    assert [brief(each)[:2] for each in world.sockets.answers(handle)] == [(Kind.OK, 2)]
    assert world.story() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]
