"""The end of a connection, what becomes of its session, and who comes after."""

import pytest

import protocol
from protocol import Code, Kind
from tests.cells import brief
from tests.worlds import GRACE, LOGIN, T, World, ended


@pytest.mark.parametrize(("reason", "code"), [("logout", Code.LOGOUT), ("background", Code.BACKGROUND)])
def test_a_logout_ends_at_once(reason: str, code: Code) -> None:
    world = World()
    handle = world.login()
    world.sockets.feed(handle, protocol.encode(protocol.logout(reason)))
    assert world.story() == [LOGIN, ended(code)]
    assert len(world.registry) == 0


def test_a_code_that_forbids_a_return_ends_at_once() -> None:
    world = World()
    world.sockets.feed(world.login(), b"\0\0\0\0")
    assert world.story() == [LOGIN, ended(Code.PROTOCOL_ERROR)]


def test_without_a_grace_the_end_comes_at_once() -> None:
    world = World(grace=0.0)
    world.sockets.close(world.login())
    assert world.story() == [LOGIN, ended(Code.CLOSED)]


def test_a_return_within_grace_is_one_login_and_no_end() -> None:
    world = World()
    world.sockets.close(world.login())
    world.pass_time(GRACE / 2)
    world.login()
    world.pass_time(T - 1)
    assert world.story() == [LOGIN, LOGIN]
    assert world.core.statistics().returned_in_grace == 1
    assert world.core.statistics().taken_over == 0


def test_a_takeover_says_goodbye_to_the_older_connection_only() -> None:
    world = World()
    old = world.login()
    world.sockets.answers(old)
    new = world.login()
    assert [brief(each) for each in world.sockets.answers(old)] == [(Kind.GOODBYE, None, Code.REPLACED)]
    assert world.is_hung_up(old)
    assert not world.is_hung_up(new)
    assert world.story() == [LOGIN, LOGIN]
    assert world.core.statistics().taken_over == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_login_on_another_node_is_counted_as_one_here_is(is_lost: bool) -> None:
    world = World()
    handle = world.login()
    if is_lost:
        world.sockets.close(handle)
    (session,) = world.registry
    assert world.core.endings.displace(session.key, world.registry.session_id(session))
    statistics = world.core.statistics()
    assert (statistics.taken_over, statistics.returned_in_grace) == ((0, 1) if is_lost else (1, 0))


def test_a_login_while_stopping_is_told_when_to_return() -> None:
    world = World()
    handle = world.sockets.connect()
    world.core.refuse_logins(lambda: 1.5)
    world.sockets.feed(handle, protocol.encode(protocol.login("ada", id=7)))
    (answer,) = world.sockets.answers(handle)
    assert (answer.kind, answer.id) == (Kind.ERROR, 7)
    assert (answer.payload["code"], answer.payload["retry_after"]) == (Code.SERVER_DRAIN, 1.5)
    assert world.is_hung_up(handle)


def test_a_session_is_served_while_its_server_stops() -> None:
    world = World()
    handle = world.login()
    world.sockets.answers(handle)
    world.core.refuse_logins(lambda: 1.5)
    world.sockets.feed(handle, protocol.encode(protocol.keepalive(3)))
    assert [(each.kind, each.id) for each in world.sockets.answers(handle)] == [(Kind.OK, 3)]
