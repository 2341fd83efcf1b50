"""Ends of sessions and connections, and what follows from each."""

import math
from collections.abc import Callable

import pytest

from presence import protocol
from presence.core.ban_list import Ban
from presence.core.changes import Op
from presence.core.registry import Session
from presence.core.termination import SessionTerminator
from presence.protocol import Code, Kind
from tests.support.state_table import brief
from tests.support.worlds import GRACE, LOGIN, TICK, T, World, ended

TOO_MANY = (Kind.GOODBYE, None, Code.SESSION_LIMIT)

GOODBYE = protocol.encode(protocol.goodbye(Code.CLOSED))
# What is called, the code of the end that follows immediately, and that of the end after the grace; None: the
# session is live.
CAUSES: dict[str, tuple[Callable[[SessionTerminator, Session], object], Code | None, Code | None]] = {
    "kick": (lambda t, _: t.kick("ada", "boot-1"), Code.KICKED, Code.KICKED),
    "ban": (lambda t, _: t.ban(Ban("ada", None, math.inf, "")), Code.BANNED, Code.BANNED),
    "limit": (lambda t, _: t.limit("ada", "boot-1"), Code.SESSION_LIMIT, Code.SESSION_LIMIT),
    "supersede": (lambda t, _: t.supersede("ada", "boot-1", Code.CLOSED), Code.REPLACED, Code.REPLACED),
    "disconnect": (lambda t, s: t.disconnect(s, GOODBYE), None, None),
    "disconnect all": (lambda t, s: t.disconnect_all([s], lambda: GOODBYE), None, None),
    "with grace": (
        lambda t, s: t.disconnect_with_grace(s, Code.AUTH_EXPIRED, GOODBYE),
        None,
        Code.AUTH_EXPIRED,
    ),
    "lost": (lambda t, s: t.disconnected(s, Code.CLOSED), None, Code.CLOSED),
    "for good": (
        lambda t, s: t.disconnected(s, Code.PROTOCOL_ERROR),
        Code.PROTOCOL_ERROR,
        Code.PROTOCOL_ERROR,
    ),
}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("cause", "immediately", "after_grace"), CAUSES.values(), ids=CAUSES)
def test_each_cause_disconnects_and_ends_as_its_code_says(
    world: World,
    cause: Callable[[SessionTerminator, Session], object],
    immediately: Code | None,
    after_grace: Code | None,
) -> None:
    world.login()
    session = world.session()
    cause(world.engine.terminator, session)
    assert session.transport is None
    assert world.history() == [LOGIN, *([ended(immediately)] if immediately else [])]
    world.pass_time(GRACE + TICK)
    assert world.history() == [LOGIN, *([ended(after_grace)] if after_grace else [])]


def test_a_lost_connection_leaves_no_bytes_behind(world: World) -> None:
    """Otherwise a client that reconnects would use memory that no limit of connections counts."""
    for end in (
        world.sockets.close,
        lambda _: world.engine.terminator.disconnect_all([world.session()], lambda: b""),
    ):
        handle = world.login()
        world.sockets.feed(handle, b"\0\0\x40\0" + bytes(16_000))
        assert world.session().unhandled
        end(handle)
        assert not world.session().unhandled


def test_a_return_within_grace_is_one_login_and_no_end(world: World) -> None:
    world.sockets.close(world.login())
    world.pass_time(GRACE / 2)
    world.login()
    world.pass_time(T - 1)
    assert world.history() == [LOGIN, LOGIN]
    assert world.engine.statistics().returned_in_grace == 1
    assert world.engine.statistics().taken_over == 0


def test_without_a_grace_the_session_ends_immediately() -> None:
    world = World(grace=0.0)
    world.sockets.close(world.login())
    assert world.history() == [LOGIN, ended(Code.CLOSED)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_login_on_another_node_is_counted_like_a_local_one(world: World, is_lost: bool) -> None:
    handle = world.login()
    if is_lost:
        world.sockets.close(handle)
    session = world.session()
    assert not world.engine.terminator.supersede(session.key, "another")
    assert world.engine.terminator.supersede(session.key, world.registry.session_id(session))
    statistics = world.engine.statistics()
    assert (statistics.taken_over, statistics.returned_in_grace) == ((0, 1) if is_lost else (1, 0))


def test_an_unread_logout_at_the_stop_counts(world: World) -> None:
    handle = world.login()
    world.sockets.answers(handle)
    world.sockets.arrive(handle, protocol.encode(protocol.logout(id=2)))
    world.engine.terminator.disconnect_all(
        list(world.registry), lambda: protocol.encode(protocol.goodbye(Code.SERVER_DRAIN))
    )
    assert [brief(each)[:2] for each in world.sockets.answers(handle)] == [(Kind.OK, 2)]
    assert world.history() == [LOGIN, (Op.END, "ada", "", int(Code.LOGOUT))]


def test_a_session_beyond_the_cluster_wide_quota_ends_for_good() -> None:
    world = World()
    phone = world.login(device="phone")
    name = world.changes[0].session
    assert not world.engine.terminator.limit(("ada", "phone"), "another")
    assert world.engine.terminator.limit(("ada", "phone"), name)
    assert world.received(phone)[-1] == TOO_MANY
    assert world.history()[1:] == [ended(Code.SESSION_LIMIT, device="phone")]
    assert not world.engine.terminator.limit(("ada", "phone"), name), "it has ended"


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
