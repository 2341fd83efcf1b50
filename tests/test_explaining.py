"""What a worker tells of a user's sessions: where each stands, and never more than an answer may hold."""

from typing import Any, cast

import msgpack
import pytest

import protocol
from presence.explaining import ENDED_MAX, SESSIONS_MAX, Explaining, LatelyEnded
from presence.inquiries import ANSWER_BYTES
from presence.registry import Connected
from presence.session import NO_LIMIT
from protocol import DEVICE_MAX_BYTES, META_MAX_BYTES, UID_MAX_BYTES, Code
from tests.auth.gates import WordGate
from tests.worlds import GRACE, TICK, T, World

WALL_MS = 1_700_000_000_000
SLOT = TICK / 2


def explaining(world: World, **more: Any) -> Explaining:
    usual: dict[str, Any] = {
        "node": lambda: "n1",
        "waiting": lambda: 7,
        "connected": lambda handle: Connected("plain", "192.0.2.1", 10 * handle),
        "watches": lambda session: 3 if session.device else 0,
    }
    return Explaining(world.core, world.clock, **usual | more)


def told(world: World, uid: str = "ada") -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", explaining(world).explain(uid)["sessions"])


def only(world: World) -> dict[str, Any]:
    (session,) = told(world)
    return session


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("uid", ["bob", "", "\x00", "{0}", "\ud800"])
def test_nobody_has_no_sessions_and_may_be_called_anything(world: World, uid: str) -> None:
    world.login()
    assert explaining(world).explain(uid) == {
        **{"node": "n1", "at_ms": WALL_MS, "outbox": 7, "more": 0},
        **{"sessions": [], "ended": []},
    }


def test_a_session_is_told_whole(world: World) -> None:
    world.login()
    world.pass_time(2.25)
    assert only(world) == {
        "device": "",
        "session": "boot-1",
        "node": "n1",
        "link": "connected",
        "address": "192.0.2.1",
        "transport": "plain",
        "login_ms": WALL_MS,
        "last_packet_ms": WALL_MS,
        "last_packet_age_s": 2.25,
        "idle_timeout_s": T,
        "deadline_ms": WALL_MS + 30_000,
        "slot": 60,
        "slot_s": SLOT,
        "slots_from_hand": 56,
        "due_ms": WALL_MS + 30_000,
        "due_in_s": 27.75,
        "ends_as": {"code": 201, "reason": "idle_timeout"},
        "status": "online",
        "away_in_s": None,
        "token_expires_in_s": None,
        "unsent_bytes": 0,
        "watches": 0,
        "vouched": True,
    }


def test_it_ends_when_it_was_told_that_it_would(world: World) -> None:
    world.now += 0.2
    handle = world.login()
    world.pass_time(7.3)
    world.beat(handle)
    session = only(world)
    assert session["due_ms"] >= session["deadline_ms"] == session["last_packet_ms"] + 30_000
    ends_ms = world.clock.decided_ms(world.now) + 1000 * session["due_in_s"]
    world.pass_time(T + TICK)
    assert world.changes[-1].code == Code.IDLE_TIMEOUT
    assert world.changes[-1].at_ms == pytest.approx(ends_ms, abs=1)


def test_each_device_is_told_of(world: World) -> None:
    world.login()
    world.login(device="phone", meta={"mood": "fine"}, status="away")
    plain, phone = told(world)
    assert (plain["device"], plain["status"], "meta" in plain) == ("", "online", False)
    assert (phone["device"], phone["status"], phone["meta"]) == ("phone", "away", {"mood": "fine"})
    assert (phone["watches"], phone["unsent_bytes"]) == (3, 10)


def test_who_lost_the_connection_has_what_is_left_of_the_grace(world: World) -> None:
    handle = world.login()
    world.pass_time(10)
    world.sockets.close(handle)
    world.pass_time(1.5)
    session = only(world)
    assert (session["link"], session["address"], session["transport"]) == ("lost", None, None)
    assert session["unsent_bytes"] is None
    assert session["due_in_s"] == GRACE - 1.5
    assert session["ends_as"] == {"code": 200, "reason": "closed"}
    world.login("bob")
    (bob,) = cast("list[Any]", explaining(world, connected=lambda _: None).explain("bob")["sessions"])
    assert (bob["link"], bob["address"], bob["transport"]) == ("connected", None, None), "nothing is told"


def test_a_session_that_ends_in_this_moment_has_no_slot(world: World) -> None:
    world.login()
    seen: list[dict[str, Any]] = []
    world.now += T + TICK
    world.guard.alive(world.now)
    world.credits = False
    world.run_tick(lambda: seen.append(only(world)))
    assert [(s["slot"], s["slots_from_hand"], s["due_in_s"]) for s in seen] == [(None, None, None)]


def test_when_it_is_away_by_itself() -> None:
    world = World(away_after=20.0)
    world.login()
    world.pass_time(5)
    assert only(world)["away_in_s"] == 15.0
    handle = world.session().handle
    world.beat(handle)
    world.pass_time(16)
    session = only(world)
    assert (session["status"], session["away_in_s"]) == ("away", None)


def test_when_its_token_ends() -> None:
    world = World(gate=WordGate())
    handle = world.sockets.connect()
    world.sockets.feed(handle, protocol.encode(protocol.login(None, token="ada:100")))
    world.pass_time(10)
    assert only(world)["token_expires_in_s"] == pytest.approx(90, abs=0.5)


def test_who_is_too_silent_to_be_registered_is_not_vouched_for(world: World) -> None:
    world.login()
    world.now += T + 2 * TICK
    list(world.core.registrations([*world.registry]))
    assert only(world)["vouched"] is False


def test_what_ended_lately_is_told(world: World) -> None:
    lately = LatelyEnded(World())
    handle = world.login(device="phone")
    world.pass_time(T + TICK)
    assert world.is_hung_up(handle)
    for change in world.changes:
        lately.append(change)
    assert explaining(world, ended=lately.of).explain("ada")["ended"] == [
        {
            "device": "phone",
            "session": "boot-1",
            "code": 201,
            "reason": "idle_timeout",
            "at_ms": WALL_MS + 30_000,
            "last_packet_ms": WALL_MS,
            "idle_timeout_s": T,
            "deadline_ms": WALL_MS + 30_000,
        }
    ]


@pytest.mark.parametrize(
    "said",
    [
        "\x01" * (META_MAX_BYTES - 6),
        b"\xff" * (META_MAX_BYTES - 6),  # as hex
        [b""] * ((META_MAX_BYTES - 6) // 2),  # {"$bin": ""} for each: nothing takes more room
        [b"\xff"] * ((META_MAX_BYTES - 6) // 3),
        [{"$": 1}] * ((META_MAX_BYTES - 6) // 4),
    ],
    ids=["text", "binary", "empty binaries", "small binaries", "maps"],
)
def test_the_largest_answer_fits_a_datagram(said: object) -> None:
    uid = "u" * UID_MAX_BYTES
    world = World(session_limit=NO_LIMIT)
    for n in range(SESSIONS_MAX + 2):
        world.login(uid, device=f"{n:0{DEVICE_MAX_BYTES}}", meta={"x": said})
    node = "n" * 64
    answer = explaining(
        world,
        node=lambda: node,
        waiting=lambda: 2**40,
        connected=lambda _: Connected("stream", "ffff:ffff:ffff:ffff::/64", 2**30),
        watches=lambda _session: 2**30,
        ended=lambda _uid, _now: [world.changes[0]._replace(code=201)] * 20,
    ).explain(uid)
    assert answer["more"] == 2
    assert len(cast("list[object]", answer["ended"])) == ENDED_MAX
    packed: bytes = msgpack.packb([1, answer])
    print(f"{SESSIONS_MAX} sessions: {len(packed)} bytes")
    assert len(packed) < min(60_000, ANSWER_BYTES)
