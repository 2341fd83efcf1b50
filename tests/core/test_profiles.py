"""Profiles of sessions, from packets to changes: updates and auto-away."""

from typing import Any

import pytest

from presence import protocol
from presence.common import meta_json
from presence.core.changes import Op
from presence.core.event_facts import LoginFacts
from presence.core.profiles import PLAIN, Profile
from presence.protocol import Code, Kind, Packet
from presence.protocol.constants import Status
from tests.support.desks import NotingDesk
from tests.support.worlds import TICK, World

AWAY_AFTER = 100.0
AWAY = Profile("away")
APP = {"app": "3.1"}
APP_TEXT = meta_json.to_text(APP)
GRANTED = [(Kind.OK, 7, None)]


def shown(world: World) -> list[tuple[Op, int, Profile]]:
    return [(each.op, each.code, each.profile) for each in world.changes]


def codes(world: World) -> list[int]:
    """Return the codes of the changes after the login."""
    return [each.code for each in world.changes[1:]]


def update(world: World, handle: int, **parts: Any) -> list[tuple[Kind, int | None, int | None]]:
    return world.send(handle, protocol.update(id=7, **parts))


@pytest.mark.parametrize(
    ("parts", "profile"),
    [
        ({"meta": APP, "status": "away"}, Profile("away", APP_TEXT)),
        ({}, PLAIN),
        ({"status": "online", "meta": {}}, PLAIN),
    ],
)
def test_a_login_sets_the_profile_and_a_registration_has_the_current_one(
    parts: dict[str, Any], profile: Profile
) -> None:
    world = World()
    handle = world.login(**parts)
    assert shown(world) == [(Op.LOGIN, Code.LOGIN, profile)]
    world.login("bob")
    update(world, handle, status="away", meta={"now": 1})
    profiles = {each.uid: each.profile for each in world.engine.registration.registrations([*world.registry])}
    assert profiles == {"ada": Profile("away", meta_json.to_text({"now": 1})), "bob": PLAIN}


def test_updates_have_the_code_of_what_they_change_and_no_change_is_no_event() -> None:
    world = World()
    handle = world.login()
    requests: list[dict[str, Any]] = [{"meta": APP}, {"status": "away"}, {"meta": {}}, {"status": "online"}]
    for parts in requests:
        assert update(world, handle, **parts) == update(world, handle, **parts) == GRANTED
    assert update(world, handle) == GRANTED
    assert shown(world)[1:] == [
        (Op.UPDATE, Code.UPDATED, Profile(meta=APP_TEXT)),
        (Op.UPDATE, Code.AWAY, Profile("away", APP_TEXT)),
        (Op.UPDATE, Code.UPDATED, AWAY),
        (Op.UPDATE, Code.BACK, PLAIN),
    ]
    assert world.engine.statistics().updates == 4


INVISIBLE: dict[str, Any] = {"status": "invisible", "scope": "user"}


@pytest.mark.parametrize(
    ("before", "parts", "profile", "privacy", "granted"),
    [
        ("online", INVISIBLE, Profile(privacy="i"), "+i", {"scope": "user"}),
        ("busy", INVISIBLE, Profile("busy", privacy="i"), "+i", {"scope": "user"}),
        # That of the session ends: no other device could take it back.
        ("invisible", INVISIBLE, Profile(privacy="i"), "+i", {"scope": "user"}),
        ("busy", {**INVISIBLE, "until_ms": 1}, Profile("busy", privacy="i"), "+i", {"scope": "user"}),
        ("busy", {"status": "online", "scope": "user"}, PLAIN, "-i", {"scope": "user"}),
        ("busy", {"status": "invisible", "scope": "session"}, Profile("invisible"), "", {}),
        (
            "busy",
            {"hide": ["hair", "last_seen"]},
            Profile("busy", privacy="l"),
            "+l",
            {"hide": ["last_seen"]},
        ),
        ("busy", {"hide": []}, Profile("busy"), "-l", {"hide": []}),
        (
            "busy",
            {**INVISIBLE, "hide": ["last_seen"]},
            Profile("busy", privacy="il"),
            "+i+l",
            {"scope": "user", "hide": ["last_seen"]},
        ),
    ],
)
def test_a_change_of_what_the_user_hides_is_one_change_with_the_own_status(
    before: Status, parts: dict[str, Any], profile: Profile, privacy: str, granted: dict[str, Any]
) -> None:
    world = World()
    handle = world.login(status=before)
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.update(id=7, **parts)))
    assert world.sockets.answers(handle) == [protocol.ok(7, **granted)]
    changes = world.changes[1:]
    assert [(each.op, each.profile, each.privacy) for each in changes] == [(Op.UPDATE, profile, privacy)]


def test_a_login_hides_the_user_at_once_and_takes_back_after_it() -> None:
    world = World()
    world.login("ada", **INVISIBLE, hide=["last_seen"])
    world.login("bob", status="busy", scope="user", hide=[])
    assert [(each.uid, each.op, each.profile, each.privacy) for each in world.changes] == [
        ("ada", Op.LOGIN, Profile(privacy="il"), ""),
        ("bob", Op.LOGIN, Profile("busy"), ""),
        ("bob", Op.UPDATE, Profile("busy"), "-i-l"),
    ]


def test_a_notice_of_what_the_user_hides_is_no_change_and_stays_with_updates() -> None:
    world = World()
    handle = world.login()
    session = world.changes[0].session
    world.registry.note_privacy("ada", "another", "l")
    world.registry.note_privacy("ada", session, "lix")
    assert len(world.changes) == 1
    update(world, handle, status="busy")
    update(world, handle, hide=[])
    assert [each.profile for each in world.changes[1:]] == [
        Profile("busy", privacy=each) for each in ("il", "i")
    ]


def test_too_many_updates_are_refused_and_the_connection_stays() -> None:
    world = World()
    handle = world.login()
    refused = [(Kind.ERROR, 7, Code.RATE_LIMITED)]
    answers = [update(world, handle, status=each) for each in ["away", "online"] * 50]
    assert answers == [GRANTED] * 10 + [refused] * 90
    assert len(world.changes) == 1 + 10
    world.now += 0.75
    world.sockets.feed(handle, protocol.encode(protocol.update(id=8, status="away")))
    (refusal,) = world.sockets.answers(handle)
    assert refusal.payload["retry_after"] == 0.25
    world.now += 0.25
    assert update(world, handle, status="away") == GRANTED
    assert update(world, handle, status="online") == refused


def test_login_updates_and_logout_in_one_read_are_changes_in_order() -> None:
    world = World()
    packets = (protocol.update(status="away"), protocol.update(meta=APP), protocol.logout())
    world.send(world.sockets.connect(), protocol.login("ada"), *packets)
    assert codes(world) == [Code.AWAY, Code.UPDATED, Code.LOGOUT]


# Auto-away


def test_a_session_with_nothing_but_keepalives_becomes_away() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login(meta=APP)
    began = world.now
    world.engine.request_handler = NotingDesk()
    world.keep_alive(handle, AWAY_AFTER / 2)
    world.send(handle, protocol.keepalive(1))  # nor does one that requests an answer
    world.send(handle, protocol.confirmation([1]))  # or confirms a message, which the client does by itself
    world.keep_alive(handle, AWAY_AFTER / 2 - 1)
    assert len(world.changes) == 1
    world.pass_time(2.0)
    assert shown(world)[1:] == [(Op.UPDATE, Code.AWAY, Profile("away", APP_TEXT))]
    assert AWAY_AFTER <= world.changes[1].at - began <= AWAY_AFTER + TICK / 2
    world.keep_alive(handle, 3 * AWAY_AFTER)
    assert len(world.changes) == 2, "one change only"
    assert world.engine.statistics().away == 1


@pytest.mark.parametrize(
    "packet",
    [Packet(9, 1), protocol.message("bob", "hi"), protocol.query(["bob"]), protocol.update(id=1)],
    ids=["unknown kind", "message", "query", "update of nothing"],
)
def test_any_other_packet_postpones_auto_away_and_ends_it_immediately(packet: Packet) -> None:
    world = World(away_after=AWAY_AFTER)
    world.engine.request_handler = NotingDesk()
    handle = world.login()
    for _ in range(3):
        world.keep_alive(handle, AWAY_AFTER - 5)
        world.send(handle, packet)
    world.keep_alive(handle, AWAY_AFTER - 0.1)
    world.sockets.arrive(handle, protocol.encode(packet))  # still unread when the time is up
    world.keep_alive(handle, AWAY_AFTER - 5)
    assert len(world.changes) == 1
    world.keep_alive(handle, 10)
    world.send(handle, packet)
    assert shown(world)[1:] == [(Op.UPDATE, Code.AWAY, AWAY), (Op.UPDATE, Code.BACK, PLAIN)]
    assert world.changes[-1].at == world.now


def test_a_logout_is_no_return_of_a_session_that_is_away_by_itself() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    world.keep_alive(handle, AWAY_AFTER + TICK)
    world.send(handle, protocol.logout())
    assert codes(world) == [Code.AWAY, Code.LOGOUT]


@pytest.mark.parametrize(
    ("by_itself", "parts", "expected"),
    [
        (False, {"status": "away"}, [Code.AWAY]),
        (True, {"status": "away"}, [Code.AWAY]),
        (True, {"meta": APP}, [Code.AWAY, Code.BACK]),
    ],
    ids=["says so", "says so, too", "shows something else"],
)
def test_a_session_set_away_by_its_client_stays_away_when_it_sends(
    by_itself: bool, parts: dict[str, Any], expected: list[Code]
) -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login()
    world.keep_alive(handle, AWAY_AFTER + TICK if by_itself else 1)
    update(world, handle, **parts)
    world.send(handle, Packet(9))
    world.keep_alive(handle, AWAY_AFTER - 5)
    assert codes(world) == expected
    assert world.engine.statistics().away == (expected[-1] is Code.AWAY)
    update(world, handle, status="online")
    world.keep_alive(handle, AWAY_AFTER + TICK)
    assert codes(world)[-1] == Code.AWAY


# Busy, do not disturb, and an end of a status

AHEAD_S = 60


def until(world: World, seconds: float) -> int:
    return world.clock.seen_ms(world.now) + round(seconds * 1000)


def statuses(world: World) -> list[str]:
    return [each.profile.status for each in world.changes]


def test_private_is_kept_beside_meta_and_removed_by_an_empty_map() -> None:
    world = World()
    handle = world.login(private={"push": "x"})
    update(world, handle, meta=APP)
    update(world, handle, private={})
    private = meta_json.to_text({"push": "x"})
    assert [each.profile for each in world.changes] == [
        Profile(private=private),
        Profile("online", APP_TEXT, private),
        Profile("online", APP_TEXT),
    ]


def test_a_status_ends_by_itself_and_the_one_from_before_is_back() -> None:
    world = World()
    handle = world.login(status="busy")
    update(world, handle, status="dnd", until_ms=until(world, AHEAD_S))
    update(world, handle, meta=APP)  # leaves the status and its end
    world.keep_alive(handle, AHEAD_S - TICK)
    assert statuses(world) == ["busy", "dnd", "dnd"]
    world.keep_alive(handle, 3 * TICK)
    assert statuses(world) == ["busy", "dnd", "dnd", "busy"]
    assert world.changes[-1].profile.meta == APP_TEXT


@pytest.mark.parametrize("then", ["busy", "online"])
def test_a_status_without_an_end_replaces_the_end(then: str) -> None:
    world = World()
    handle = world.login()
    update(world, handle, status="away", until_ms=until(world, AHEAD_S))
    update(world, handle, status=then)
    world.keep_alive(handle, 2 * AHEAD_S)
    assert statuses(world) == ["online", "away", then]


def test_of_several_ends_the_last_counts_and_the_first_status_is_back() -> None:
    world = World()
    handle = world.login()
    update(world, handle, status="away", until_ms=until(world, AHEAD_S))
    update(world, handle, status="busy", until_ms=until(world, 2 * AHEAD_S))
    world.keep_alive(handle, 2 * AHEAD_S - TICK)
    assert statuses(world) == ["online", "away", "busy"]
    world.keep_alive(handle, 3 * TICK)
    assert statuses(world) == ["online", "away", "busy", "online"]


def test_a_status_that_is_read_when_the_end_of_another_is_due_stays() -> None:
    world = World()
    handle = world.login(status="dnd", until_ms=until(world, AHEAD_S))
    world.keep_alive(handle, AHEAD_S - TICK)
    world.now += 2 * TICK
    world.run_slot(lambda: update(world, handle, status="busy", until_ms=until(world, AHEAD_S)))
    assert statuses(world) == ["dnd", "busy"]


def test_an_end_that_has_passed_sets_no_status() -> None:
    world = World()
    handle = world.login(status="dnd", until_ms=until(world, -1), meta=APP)
    assert update(world, handle, status="busy", until_ms=0) == GRANTED
    assert [each.profile for each in world.changes] == [Profile(meta=APP_TEXT)]


def test_the_end_of_a_status_goes_with_its_session() -> None:
    world = World()
    world.login(status="dnd", until_ms=until(world, AHEAD_S))
    again = world.login()
    world.keep_alive(again, 2 * AHEAD_S)
    assert statuses(world) == ["dnd", "online"]


def test_after_a_status_with_an_end_a_session_becomes_away_by_itself() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login(status="dnd", until_ms=until(world, 2 * AWAY_AFTER))
    world.keep_alive(handle, 4 * AWAY_AFTER)
    assert statuses(world) == ["dnd", "online", "away"]


def test_only_a_session_that_is_online_becomes_away_by_itself() -> None:
    world = World(away_after=AWAY_AFTER)
    handle = world.login(status="busy")
    world.keep_alive(handle, 2 * AWAY_AFTER)
    assert statuses(world) == ["busy"]


def test_a_login_says_its_address_where_a_setting_asks_for_it() -> None:
    world = World()
    world.engine.records_addresses = True
    handle = world.login()
    update(world, handle, status="away")
    assert [each.profile for each in world.changes] == [
        Profile(facts=LoginFacts("127.0.0.1")),
        Profile("away", facts=LoginFacts("127.0.0.1")),
    ]
