"""Which sessions are quiet, and which packets release what is held for them."""

from typing import Any

import pytest

from presence import protocol
from presence.protocol import KEEPALIVE, Code, Kind, Packet
from tests.support.desks import NotingDesk
from tests.support.worlds import GRACE, TICK, T, World


class QuietWorld(World):
    """A world in which changes may be held for ada."""

    def __init__(self) -> None:
        super().__init__()
        self.engine.request_handler = self.desk = NotingDesk()

    @property
    def is_quiet(self) -> bool:
        return self.registry.get("ada") in self.engine.quiet.sessions

    def hold(self) -> None:
        """Do what the push queue does with a change for a quiet session."""
        self.engine.quiet.holding.add(self.session())


@pytest.fixture
def world() -> QuietWorld:
    return QuietWorld()


@pytest.mark.parametrize(
    ("login", "updates", "is_quiet"),
    [
        ({}, [], False),
        ({"quiet": True}, [], True),
        ({"quiet": False}, [], False),
        ({}, [{"quiet": True}], True),
        ({"quiet": True}, [{"quiet": False}], False),
        ({"quiet": True}, [{"status": "away"}, {"idle_timeout": 60}], True),
        ({}, [{"quiet": True, "status": "busy"}], True),
    ],
)
def test_login_and_updates_say_whether_a_session_is_quiet(
    world: QuietWorld, login: dict[str, Any], updates: list[dict[str, Any]], is_quiet: bool
) -> None:
    handle = world.login(**login)
    for each in updates:
        assert world.send(handle, protocol.update(id=7, **each)) == [(Kind.OK, 7, None)]
    assert world.is_quiet is is_quiet


def test_others_are_shown_nothing_of_it(world: QuietWorld) -> None:
    handle = world.login()
    world.send(handle, protocol.update(quiet=True))
    world.send(handle, protocol.update(quiet=False))
    assert len(world.changes) == 1


def test_a_refused_update_changes_nothing(world: QuietWorld) -> None:
    handle = world.login()
    for each in [True, False] * 5:
        world.send(handle, protocol.update(quiet=each))
    world.send(handle, protocol.update(quiet=True, id=7))
    assert not world.is_quiet


@pytest.mark.parametrize(
    "packet",
    [
        protocol.keepalive(5),
        protocol.update(quiet=False),
        protocol.update(status="away"),
        protocol.query(["bob"]),
        protocol.message("bob", "hi"),
        Packet(9),
    ],
    ids=lambda packet: f"kind {packet.kind}",
)
def test_any_packet_releases_what_is_held(world: QuietWorld, packet: Packet) -> None:
    handle = world.login(quiet=True)
    world.hold()
    world.send(handle, packet)
    assert world.desk.releases == [world.session()]


def test_a_refused_update_releases_too(world: QuietWorld) -> None:
    handle = world.login(quiet=True)
    for _ in range(10):
        world.send(handle, protocol.update())
    world.hold()
    assert world.send(handle, protocol.update()) == [(Kind.ERROR, None, Code.RATE_LIMITED)]
    assert world.desk.releases == [world.session()]


def test_keepalives_that_are_read_in_a_batch_release_for_those_who_sent_them(world: QuietWorld) -> None:
    ada, bob = world.login(quiet=True), world.login("bob", quiet=True)
    world.hold()
    world.beat(bob)
    assert not world.desk.releases
    world.beat(ada, bob)
    assert world.desk.releases == [world.session()]


def test_a_part_of_a_packet_releases_nothing(world: QuietWorld) -> None:
    handle = world.login(quiet=True)
    world.hold()
    world.sockets.feed(handle, KEEPALIVE[:3])
    assert not world.desk.releases
    world.sockets.feed(handle, KEEPALIVE[3:])
    assert world.desk.releases == [world.session()]


def test_a_login_of_the_same_device_is_not_quiet(world: QuietWorld) -> None:
    world.login(quiet=True)
    world.hold()
    world.login()
    assert not world.is_quiet
    assert not world.engine.quiet.sessions
    assert not world.engine.quiet.holding


@pytest.mark.parametrize("end", ["logout", "lost", "silence", "kick"])
def test_nothing_is_kept_of_a_session_without_a_connection(world: QuietWorld, end: str) -> None:
    handle = world.login(quiet=True)
    world.hold()
    if end == "logout":
        world.send(handle, protocol.logout())
    elif end == "lost":
        world.sockets.close(handle)
    elif end == "silence":
        world.pass_time(T + TICK + GRACE)
    else:
        world.engine.terminator.kick("ada", world.registry.session_id(world.session()))
    assert not world.engine.quiet.sessions
    assert not world.engine.quiet.holding


def test_an_update_before_the_end_of_a_connection_leaves_nothing_behind(world: QuietWorld) -> None:
    handle = world.login()
    world.send(handle, protocol.update(quiet=True), protocol.logout())
    assert not world.engine.quiet.sessions
