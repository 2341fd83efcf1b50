"""A server that stops takes nobody in."""

import protocol
from protocol import Code, Kind
from tests.worlds import World


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
