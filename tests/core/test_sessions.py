"""Live sessions and their deadlines: whose a keepalive extends, what is upcoming, what an end removes."""

import pytest

from presence import protocol
from presence.core.sessions import MAX_REPORTED_SLOTS
from presence.protocol import Code
from tests.auth.gates import WordAuthenticator
from tests.support.worlds import GRACE, MAX_IDLE_TIMEOUT, START, TICK, T, World, ended

SLOT = TICK / 2


@pytest.fixture
def world() -> World:
    return World()


def test_a_keepalive_counts_for_the_session_that_sent_it_and_no_other(world: World) -> None:
    """Keepalives are counted after the whole batch was read, when their sender may have gone."""
    old, lost, ended_ = world.login(), world.login("bob"), world.login("eve")
    senders = [world.session(uid) for uid in ("ada", "bob", "eve")]
    world.pass_time(10)
    world.login(idle_timeout=MAX_IDLE_TIMEOUT)
    world.sockets.close(lost)
    world.sockets.feed(ended_, protocol.encode(protocol.logout()))
    assert world.is_disconnected(old)
    world.engine.connections_read(senders)
    assert world.engine.sessions.slot_sizes(2 * int(MAX_IDLE_TIMEOUT))[0] == 0
    world.pass_time(GRACE + SLOT)
    assert world.history()[-1] == ended(Code.CLOSED, "bob"), (
        "its grace is no longer than without the keepalive"
    )
    assert world.session().last_seen == START + 10
    world.pass_time(MAX_IDLE_TIMEOUT - GRACE - TICK)
    assert world.registry.has_user("ada"), "silent for less than its idle time-out"
    assert sum(world.engine.sessions.slot_sizes(2 * int(MAX_IDLE_TIMEOUT))) == 1, (
        "no deadline without a session"
    )


def test_upcoming_expirations_are_by_slot_bounded_and_include_overdue_ones(
    world: World,
) -> None:
    world.login()
    world.pass_time(10.0)
    world.login("bob", idle_timeout=MAX_IDLE_TIMEOUT)
    world.login("eve")
    upcoming = world.engine.sessions.upcoming_expirations(world.now)
    due = {n: size for n, size in enumerate(upcoming["sizes"]) if size}
    assert due == {round((T - 10.0) / SLOT) - 1: 1, round(T / SLOT) - 1: 1}
    assert upcoming["later"] == 1
    assert 0 <= upcoming["next_s"] <= upcoming["slot_s"] == SLOT
    long = World(idle_timeout=10_000.0)
    long.login("bob")
    long.login(idle_timeout=MAX_IDLE_TIMEOUT)
    long.now += 3.0
    upcoming = long.engine.sessions.upcoming_expirations(long.now)
    assert (upcoming["next_s"], len(upcoming["sizes"])) == (0.0, MAX_REPORTED_SLOTS)
    assert (sum(upcoming["sizes"]), upcoming["later"]) == (1, 1)


def test_an_ended_session_is_not_in_any_table() -> None:
    world = World(away_after=100.0, authenticator=WordAuthenticator())
    for device in (None, "phone", "tablet", "desk"):
        handle = world.sockets.connect()
        login = protocol.login(None, token="ada:60", device=device, meta={"a": 1})
        world.sockets.feed(handle, protocol.encode(login))
    left = world.registry.sessions_of("ada")
    assert [each.device for each in left] == ["", "phone", "tablet", "desk"]
    for session in (left[2], left[0], left[3], left[1]):
        world.sockets.feed(session.handle, protocol.encode(protocol.logout()))
        left.remove(session)
        assert world.registry.sessions_of("ada") == left
    assert (len(world.engine.sessions._away_wheel), world.engine.statistics().expiring) == (0, 0)
    assert not world.registry.profiles._shown
    assert not world.registry._devices
    assert world.registry.end(session, Code.CLOSED, world.now) is None
