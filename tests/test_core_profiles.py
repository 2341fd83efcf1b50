"""What sessions are shown as, from packets to changes: updates, and being away by themselves."""

from typing import Any

import pytest

import protocol
from presence import meta
from presence.changes import PLAIN, Op, Profile
from protocol import Code, Kind, Packet
from tests.cells import brief
from tests.desks import NotingDesk
from tests.worlds import TICK, World

AWAY_AFTER = 100.0
AWAY = Profile(away=True)
APP = {"app": "3.1"}
APP_TEXT = meta.to_text(APP)


def shown(world: World) -> list[tuple[Op, int, Profile]]:
    return [(each.op, each.code, each.profile) for each in world.changes]


def update(world: World, handle: int, **parts: Any) -> list[tuple[Kind, int | None, int | None]]:
    """Send an update, and return what the server says."""
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.update(id=7, **parts)))
    return [brief(each) for each in world.sockets.answers(handle)]


def pass_with_beats(world: World, handle: int, seconds: float, beat_s: float = 10.0) -> None:
    """Let time pass in which the client sends plain keepalives."""
    until = world.now + seconds
    while world.now < until:
        world.pass_time(min(beat_s, until - world.now))
        world.beat(handle)


# Logins


def test_a_login_says_how_its_session_is_shown() -> None:
    world = World()
    world.login(meta=APP, status="away")
    assert shown(world) == [(Op.LOGIN, Code.LOGIN, Profile(True, APP_TEXT))]


@pytest.mark.parametrize("parts", [{}, {"meta": {}}, {"status": "online"}, {"status": "online", "meta": {}}])
def test_a_login_that_shows_nothing_is_plain(parts: dict[str, Any]) -> None:
    world = World()
    world.login(**parts)
    assert world.changes[0].profile is PLAIN


def test_a_registration_tells_how_a_session_is_shown_now() -> None:
    world = World()
    handle = world.login(meta=APP)
    world.login("bob")
    update(world, handle, status="away")
    profiles = {each.uid: each.profile for each in world.core.registrations([*world.registry])}
    assert profiles == {"ada": Profile(True, APP_TEXT), "bob": PLAIN}


# Updates


def test_updates_have_the_code_of_what_they_change() -> None:
    world = World()
    handle = world.login()
    wishes: list[dict[str, Any]] = [{"meta": APP}, {"status": "away"}, {"meta": {}}, {"status": "online"}]
    for parts in wishes:
        update(world, handle, **parts)
    assert shown(world)[1:] == [
        (Op.UPDATE, Code.UPDATED, Profile(meta=APP_TEXT)),
        (Op.UPDATE, Code.AWAY, Profile(True, APP_TEXT)),
        (Op.UPDATE, Code.UPDATED, AWAY),
        (Op.UPDATE, Code.BACK, PLAIN),
    ]


def test_an_update_that_changes_nothing_is_granted_and_told_to_nobody() -> None:
    world = World()
    handle = world.login(meta=APP)
    wishes: list[dict[str, Any]] = [{}, {"meta": APP}, {"status": "online"}]
    for parts in wishes:
        assert update(world, handle, **parts) == [(Kind.OK, 7, None)]
    assert len(world.changes) == 1


def test_an_update_of_the_idle_timeout_is_refused_whole_and_the_connection_stays() -> None:
    world = World()
    handle = world.login()
    wish = protocol.Packet(Kind.UPDATE, 7, {"idle_timeout": 300, "status": "away"})
    world.sockets.feed(handle, protocol.encode(wish))
    assert [brief(each) for each in world.sockets.answers(handle)][-1] == (Kind.ERROR, 7, Code.UNSUPPORTED)
    assert len(world.changes) == 1
    assert not world.is_hung_up(handle)


def test_whoever_updates_all_the_time_is_refused_and_stays() -> None:
    world = World()
    handle = world.login()
    statuses = ["away", "online"] * 50
    answers = [update(world, handle, status=each)[0] for each in statuses]
    assert answers == [(Kind.OK, 7, None)] * 10 + [(Kind.ERROR, 7, Code.RATE_LIMITED)] * 90
    assert len(world.changes) == 1 + 10
    assert not world.is_hung_up(handle)
    world.now += 0.75
    world.sockets.feed(handle, protocol.encode(protocol.update(id=8, status="away")))
    (refusal,) = world.sockets.answers(handle)
    assert refusal.payload["retry_after"] == 0.25
    world.now += refusal.payload["retry_after"]
    assert update(world, handle, status="away") == [(Kind.OK, 7, None)]
    assert update(world, handle, status="online") == [(Kind.ERROR, 7, Code.RATE_LIMITED)]


def test_login_updates_and_logout_in_one_read_are_told_in_order() -> None:
    world = World()
    handle = world.sockets.connect()
    packets = (
        protocol.login("ada"),
        protocol.update(status="away"),
        protocol.update(meta=APP),
        protocol.logout(),
    )
    world.sockets.feed(handle, b"".join(map(protocol.encode, packets)))
    assert [(each.op, each.code) for each in world.changes] == [
        (Op.LOGIN, Code.LOGIN),
        (Op.UPDATE, Code.AWAY),
        (Op.UPDATE, Code.UPDATED),
        (Op.END, Code.LOGOUT),
    ]


# Away by itself


def test_nothing_but_keepalives_for_long_is_being_away() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login(meta=APP)
    began = world.now
    pass_with_beats(world, handle, AWAY_AFTER - 1)
    assert len(world.changes) == 1
    world.pass_time(2.0)
    assert shown(world)[1:] == [(Op.UPDATE, Code.AWAY, Profile(True, APP_TEXT))]
    assert AWAY_AFTER <= world.changes[1].at - began <= AWAY_AFTER + TICK / 2
    pass_with_beats(world, handle, 3 * AWAY_AFTER)
    assert len(world.changes) == 2, "told once"


@pytest.mark.parametrize(
    "packet",
    [Packet(9, 1), protocol.message("bob", "hi"), protocol.query(["bob"]), protocol.update(id=1)],
    ids=["unknown kind", "message", "query", "update of nothing"],
)
def test_anything_else_ends_it_at_once(packet: Packet) -> None:
    world = World(away_after=AWAY_AFTER)
    world.core.desk = NotingDesk()
    handle = world.login()
    pass_with_beats(world, handle, AWAY_AFTER + TICK)
    world.sockets.feed(handle, protocol.encode(packet))
    assert shown(world)[1:] == [(Op.UPDATE, Code.AWAY, AWAY), (Op.UPDATE, Code.BACK, PLAIN)]
    assert world.changes[-1].at == world.now
    pass_with_beats(world, handle, AWAY_AFTER - 1)
    assert len(world.changes) == 3
    pass_with_beats(world, handle, 2.0)
    assert shown(world)[3:] == [(Op.UPDATE, Code.AWAY, AWAY)]


def test_a_keepalive_that_wants_an_answer_ends_nothing() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    for _ in range(11):
        world.pass_time(10.0)
        world.sockets.feed(handle, protocol.encode(protocol.keepalive(1)))
    assert [each.code for each in world.changes[1:]] == [Code.AWAY]


def test_what_is_sent_meanwhile_puts_it_off() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    for _ in range(10):
        pass_with_beats(world, handle, AWAY_AFTER - 5)
        world.sockets.feed(handle, protocol.encode(Packet(9)))
    assert len(world.changes) == 1


def test_who_said_that_it_is_away_is_not_back_by_sending() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    update(world, handle, status="away")
    world.sockets.feed(handle, protocol.encode(Packet(9)))
    pass_with_beats(world, handle, 2 * AWAY_AFTER)
    assert [each.code for each in world.changes[1:]] == [Code.AWAY]
    update(world, handle, status="online")
    pass_with_beats(world, handle, AWAY_AFTER + TICK)
    assert [each.code for each in world.changes[2:]] == [Code.BACK, Code.AWAY]


@pytest.mark.parametrize(
    ("parts", "codes"),
    [({"status": "away"}, [Code.AWAY]), ({"meta": APP}, [Code.AWAY, Code.BACK])],
    ids=["says so itself", "shows something else"],
)
def test_who_is_away_by_itself_and_updates_is_away_as_far_as_it_says_so(
    parts: dict[str, Any], codes: list[Code]
) -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    pass_with_beats(world, handle, AWAY_AFTER + TICK)
    update(world, handle, **parts)
    world.sockets.feed(handle, protocol.encode(Packet(9)))
    assert [each.code for each in world.changes[1:]] == codes
    assert world.core.statistics().away == (codes[-1] is Code.AWAY)


def test_a_message_that_waits_in_the_socket_keeps_its_sender_from_being_away() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    pass_with_beats(world, handle, AWAY_AFTER - 0.1)
    world.sockets.arrive(handle, protocol.encode(Packet(9)))
    world.pass_time(2 * TICK)
    assert len(world.changes) == 1


def test_the_statistics_tell_who_is_away_and_how_much_was_updated() -> None:
    world = World()
    handle = world.login()
    world.login("bob", status="away")
    update(world, handle, status="away")
    update(world, handle, meta=APP)
    statistics = world.core.statistics()
    assert (statistics.away, statistics.updates) == (2, 2)
