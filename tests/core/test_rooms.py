"""Rooms of a session: from logins, updates and tokens to its profile, and what the answers say."""

from typing import Any

import pytest

from presence import protocol
from presence.core.authenticator import NO_ROOM_CLAIM, NamePatterns, Refusal, RoomClaim
from presence.core.changes import Op
from presence.core.profiles import PLAIN, Profile
from presence.core.rooms import RoomChange, may_watch, renewed, rooms_after, rooms_at_login, shows_members
from presence.protocol import ROOMS_MAX, Code, Kind
from tests.auth.gates import WordAuthenticator
from tests.support.desks import NotingDesk
from tests.support.worlds import World

AWAY_AFTER = 100.0
MANY = [f"r{n:02}" for n in range(ROOMS_MAX)]
CLAIM = RoomClaim("hall lobby", NamePatterns(frozenset({"bar"}), ("game:",)))
MODES = ["claimed", "open"]


def text(*names: str) -> str:
    return " ".join(names)


# Which rooms


@pytest.mark.parametrize(
    ("asked", "claimed", "opened"),
    [
        ([], "hall lobby", "hall lobby"),
        (["zoo", "bar", "bar"], "bar hall lobby", "bar hall lobby zoo"),
        (["lobby", "game:7", "game", "gam"], "game:7 hall lobby", "gam game game:7 hall lobby"),
    ],
)
def test_a_login_has_the_claimed_rooms_and_those_that_it_may_join(
    asked: list[str], claimed: str, opened: str
) -> None:
    assert rooms_at_login(asked, CLAIM, "claimed") == claimed
    assert rooms_at_login(asked, CLAIM, "open") == opened


def test_of_too_many_rooms_of_a_login_the_first_ones_count_beside_the_claimed() -> None:
    asked = ["z", "a", *MANY]
    assert rooms_at_login(asked, NO_ROOM_CLAIM, "open") == text("a", *MANY[:14], "z")
    assert rooms_at_login(asked, CLAIM, "open") == text("a", "hall", "lobby", *MANY[:12], "z")


def test_rooms_are_in_the_order_of_their_bytes() -> None:
    names = ["é", "z", "Z", "\U0001f600", "中", "a:1", "a"]
    joined = rooms_at_login(names, NO_ROOM_CLAIM, "open").split()
    assert joined == sorted(names, key=str.encode)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (RoomChange(("b",)), "b"),
        (RoomChange(()), ""),
        (RoomChange(join=("c", "a")), "a b c"),
        (RoomChange(leave=("b", "x")), "a"),
        (RoomChange(join=("c",), leave=("a",)), "b c"),
        (RoomChange(("c", "d"), join=("e",), leave=("d",)), "c e"),
        (RoomChange(join=("a",), leave=("a",)), "a b"),
    ],
)
def test_an_update_takes_away_and_then_adds(change: RoomChange, after: str) -> None:
    assert rooms_after("a b", change, NO_ROOM_CLAIM, "open") == after
    kept = {"hall", "lobby"}
    assert rooms_after("a b hall lobby", change, CLAIM, "open") == text(*sorted({*after.split()} | kept))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [RoomChange(("zoo",)), RoomChange(join=("bar", "zoo"))])
def test_a_room_that_the_token_does_not_name_is_refused(change: RoomChange, mode: str) -> None:
    after = rooms_after("hall lobby", change, CLAIM, mode)
    assert (isinstance(after, Refusal) and after.code is Code.NOT_ALLOWED) == (mode == "claimed")
    nothing = rooms_after("", change, NO_ROOM_CLAIM, mode)
    assert isinstance(nothing, Refusal) == (mode == "claimed"), "a token without the claim allows none"


@pytest.mark.parametrize("mode", MODES)
def test_claimed_rooms_may_be_named_and_cannot_be_left(mode: str) -> None:
    change = RoomChange(("lobby",), join=("hall",), leave=("lobby", "hall"))
    assert rooms_after("bar hall lobby", change, CLAIM, mode) == "hall lobby"


def test_rooms_beyond_the_most_are_refused_claimed_ones_included() -> None:
    present = text(*MANY[:15])
    assert rooms_after(present, RoomChange(join=("z",)), NO_ROOM_CLAIM, "open") == text(*MANY[:15], "z")
    assert rooms_after(present, RoomChange(join=("y", "z"), leave=("r00",)), NO_ROOM_CLAIM, "open")
    for change, claim in [
        (RoomChange(join=("y", "z")), NO_ROOM_CLAIM),
        (RoomChange(tuple(MANY[:15])), CLAIM),
    ]:
        after = rooms_after(present, change, claim, "open")
        assert isinstance(after, Refusal)
        assert after.code is Code.TOO_LARGE


@pytest.mark.parametrize(
    ("new", "claimed", "opened"),
    [
        (CLAIM, "bar hall lobby", "bar hall lobby zoo"),
        (NO_ROOM_CLAIM, "", "bar zoo"),
        (RoomClaim("lobby", NamePatterns(prefixes=("",))), "bar lobby zoo", "bar lobby zoo"),
        (RoomClaim("roof", NamePatterns(frozenset({"hall"}))), "roof", "bar roof zoo"),
        (RoomClaim(text(*MANY)), text(*MANY), text(*MANY)),
        (RoomClaim(text(*MANY[:15]), NamePatterns(prefixes=("",))), *[text("bar", *MANY[:15])] * 2),
    ],
)
def test_a_new_token_takes_the_claimed_rooms_of_the_old_one_away(
    new: RoomClaim, claimed: str, opened: str
) -> None:
    assert renewed("bar hall lobby zoo", CLAIM, new, "claimed") == claimed
    assert renewed("bar hall lobby zoo", CLAIM, new, "open") == opened


WATCHES = RoomClaim(
    "hall lobby", NamePatterns(frozenset({"bar"})), NamePatterns(frozenset({"zoo"}), ("game:",))
)


@pytest.mark.parametrize(
    "room", ["hall", "lobby", "bar", "zoo", "game:7", "hal", "hall lobby", "roof", "gam"]
)
@pytest.mark.parametrize("claim", [WATCHES, NO_ROOM_CLAIM])
def test_a_claim_lets_a_client_watch_the_rooms_of_its_session_those_to_join_and_those_to_watch(
    room: str, claim: RoomClaim
) -> None:
    is_named = claim is WATCHES and room in {"hall", "lobby", "bar", "zoo", "game:7"}
    assert may_watch(room, claim, "claimed") == is_named
    assert may_watch(room, claim, "open")
    assert not may_watch(room, claim, "off")


@pytest.mark.parametrize(("says", "claimed", "opened"), [(None, 0, 1), (True, 1, 1), (False, 0, 0)])
def test_a_claim_says_whether_members_are_shown_and_without_one_the_mode_does(
    says: bool | None, claimed: bool, opened: bool
) -> None:
    claim = RoomClaim(members=says)
    assert (shows_members(claim, "claimed"), shows_members(claim, "open")) == (claimed, opened)


# In the engine


def world_with(mode: str = "open", **parts: Any) -> World:
    return World(authenticator=WordAuthenticator() if mode == "claimed" else None, rooms=mode, **parts)


def token(inside: str = "", join: str = "", watch: str = "") -> str:
    return f"ada:600:::{inside}:{join}:{watch}"


def shown(world: World) -> list[tuple[Op, int, Profile]]:
    return [(each.op, each.code, each.profile) for each in world.changes]


def rooms(world: World) -> str:
    return world.registry.profiles.get(world.session().number).rooms


def answer(world: World, handle: int, **parts: Any) -> protocol.Packet:
    """Send an update; return the answer."""
    world.sockets.answers(handle)
    world.sockets.feed(handle, protocol.encode(protocol.update(id=7, **parts)))
    (packet,) = world.sockets.answers(handle)
    return packet


def test_logins_and_updates_set_the_rooms_of_the_profile_and_the_answers_name_them() -> None:
    world = world_with()
    handle = world.login(rooms=["lobby", "hall", "lobby"])
    (login,) = world.sockets.answers(handle)
    assert login.payload["joined"] == ["hall", "lobby"]
    assert answer(world, handle, join=["bar"], leave=["hall"]) == protocol.ok(7, joined=["bar", "lobby"])
    assert answer(world, handle, join=["bar"]) == protocol.ok(7, joined=["bar", "lobby"])
    assert answer(world, handle, status="away") == protocol.ok(7)
    assert answer(world, handle, rooms=[], status="online") == protocol.ok(7, joined=[])
    assert shown(world) == [
        (Op.LOGIN, Code.LOGIN, Profile(rooms="hall lobby")),
        (Op.UPDATE, Code.UPDATED, Profile(rooms="bar lobby")),
        (Op.UPDATE, Code.AWAY, Profile("away", rooms="bar lobby")),
        (Op.UPDATE, Code.BACK, PLAIN),
    ]


def test_rooms_belong_to_the_session_and_outlive_its_connection_by_the_grace() -> None:
    world = world_with()
    handle = world.login(rooms=["lobby"])
    world.sockets.close(handle)
    assert rooms(world) == "lobby"
    world.login()
    assert rooms(world) == ""
    world.login(rooms=["hall"])
    profiles = [each.profile for each in world.engine.registration.registrations([*world.registry])]
    assert profiles == [Profile(rooms="hall")]
    world.send(world.session().handle, protocol.logout())
    assert world.registry.profiles.in_rooms == 0


def test_without_rooms_a_server_ignores_the_keys() -> None:
    world = World()
    handle = world.login(rooms=["lobby"])
    (login,) = world.sockets.answers(handle)
    assert "joined" not in login.payload
    assert answer(world, handle, join=["lobby"]) == protocol.ok(7)
    assert shown(world) == [(Op.LOGIN, Code.LOGIN, PLAIN)]


def test_a_refused_update_changes_nothing_and_the_connection_stays() -> None:
    world = world_with("claimed")
    handle = world.login(token=token("hall", "lobby"), rooms=["lobby", "zoo"])
    world.sockets.answers(handle)
    for more in ({}, {"token": token("hall", "bar")}):
        refused = answer(world, handle, join=["zoo"], status="away", quiet=True, **more)
        assert (refused.kind, refused.payload["code"]) == (Kind.ERROR, Code.NOT_ALLOWED)
    assert shown(world) == [(Op.LOGIN, Code.LOGIN, Profile(rooms="hall lobby"))]
    assert not world.engine.quiet.sessions
    assert answer(world, handle, rooms=["lobby"]).payload["joined"] == ["hall", "lobby"], "the first token"
    assert world.engine.statistics().rooms_refused == 3, "the login was cut, too"


def test_a_session_in_all_rooms_is_told_that_there_is_no_other() -> None:
    world = world_with()
    handle = world.login(rooms=MANY)
    refused = answer(world, handle, join=["zoo"])
    assert (refused.kind, refused.payload["code"]) == (Kind.ERROR, Code.TOO_LARGE)
    assert rooms(world) == text(*MANY)
    assert answer(world, handle, join=["zoo"], leave=["r00"]).kind == Kind.OK


def test_a_new_token_changes_the_rooms_and_shows_no_activity() -> None:
    world = world_with("claimed", away_after=AWAY_AFTER)
    handle = world.login(token=token("hall", "lobby"), rooms=["lobby"])
    world.keep_alive(handle, 2 * AWAY_AFTER)
    assert answer(world, handle, token=token("roof", "lobby")).payload == {"joined": ["lobby", "roof"]}
    assert answer(world, handle, token=token("roof", "lobby")).payload == {"joined": ["lobby", "roof"]}
    assert answer(world, handle, token=token()).payload == {"joined": []}
    assert shown(world) == [
        (Op.LOGIN, Code.LOGIN, Profile(rooms="hall lobby")),
        (Op.UPDATE, Code.AWAY, Profile("away", rooms="hall lobby")),
        (Op.UPDATE, Code.UPDATED, Profile("away", rooms="lobby roof")),
        (Op.UPDATE, Code.UPDATED, Profile("away")),
    ]


def test_an_update_is_judged_by_the_token_that_it_holds() -> None:
    world = world_with("claimed")
    handle = world.login(token=token("hall"))
    world.sockets.answers(handle)
    changed = answer(world, handle, token=token("roof", "bar"), join=["bar"])
    assert changed.payload["joined"] == ["bar", "roof"]
    assert [each.profile.rooms for each in world.changes] == ["hall", "bar roof"]


def test_the_claim_of_a_token_is_kept_for_the_connection_only() -> None:
    world = world_with("claimed")
    handle = world.login(token=token("hall"))
    assert [*world.engine.room_claims] == [world.session()]
    answer(world, handle, token=token())
    assert world.engine.room_claims == {}
    answer(world, handle, token=token("roof"))
    world.sockets.close(handle)
    assert world.engine.room_claims == {}
    assert rooms(world) == "roof"


def test_the_request_handler_is_told_of_a_new_token_whose_claim_differs() -> None:
    world = world_with("claimed")
    world.engine.request_handler = desk = NotingDesk()
    handle = world.login(token=token("hall", watch="zoo"))
    told = []
    for watch in ("zoo", "bar", "bar", ""):
        answer(world, handle, token=token("hall", watch=watch))
        told.append(len(desk.sights))
    assert told == [0, 1, 1, 2]
    answer(world, handle, token=token())
    answer(world, handle, token=token())
    assert len(desk.sights) == 3


def test_rooms_outlive_other_changes_of_the_profile() -> None:
    world = world_with(away_after=AWAY_AFTER)
    handle = world.login(rooms=["lobby"], status="busy", until_ms=world.clock.seen_ms(world.now) + 10_000)
    answer(world, handle, meta={"a": 1}, hide=["last_seen"])
    world.engine.registry.note_privacy("ada", world.registry.session_id(world.session()), "i")
    world.keep_alive(handle, 2 * AWAY_AFTER)
    answer(world, handle, meta={})
    assert {each.profile.rooms for each in world.changes} == {"lobby"}
    assert {each.profile.status for each in world.changes} == {"busy", "online", "away"}
    assert world.registry.profiles.in_rooms == 1
