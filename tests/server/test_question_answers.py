"""The report on a user's sessions: the state of each, and never more than an answer can hold."""

from typing import Any, Literal

import msgpack
import pytest

from presence import protocol
from presence.core.registry import ConnectionInfo, Session
from presence.protocol import DEVICE_MAX_BYTES, META_TEXT_MAX_BYTES, UID_MAX_BYTES, Code
from presence.server.question_answers import (
    MAX_ENDS_REPORTED,
    MAX_SESSIONS_REPORTED,
    QuestionAnswers,
)
from presence.server.stats_socket import ANSWER_BYTES
from tests.auth.gates import WordAuthenticator
from tests.support.worlds import GRACE, TICK, T, World

WALL_MS = 1_700_000_000_000


RosterWatch = Literal["requested", "followed"] | None


class Watches:
    """Watches that sessions of named devices, and those of default ones, have; all watch the roster alike."""

    def __init__(
        self, by_device: int, by_default: int = 0, roster: RosterWatch = None, rooms: int = 0
    ) -> None:
        self.by_device, self.by_default, self.roster, self.rooms = by_device, by_default, roster, rooms

    def watches(self, session: Session) -> int:
        return self.by_device if session.device else self.by_default

    def roster_watch(self, session: Session) -> RosterWatch:
        return self.roster

    def watched_rooms(self, session: Session) -> int:
        return self.rooms

    def rooms_sent(self, session: Session, most: int) -> list[dict[str, object]]:
        numbers = {"sent": 2**40, "sent_version": 2**40, "count": 2**40, "version": 2**40}
        return [{"room": "r" * 64, **numbers, "read_age_s": 0.123} for _ in range(min(most, self.rooms))]

    def is_behind_on_rooms(self, session: Session) -> bool:
        return False


def explain(world: World, uid: str = "ada", **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "node": lambda: "n1",
        "pending_changes": lambda: 7,
        "connected": lambda handle: ConnectionInfo("plain", "192.0.2.1", 10 * handle),
        "watching": Watches(3),
    }
    return QuestionAnswers(world.engine, world.clock, **usual | more).explain(uid)


def only(world: World) -> dict[str, Any]:
    (session,) = explain(world)["sessions"]
    assert isinstance(session, dict)
    return session


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("uid", ["bob", "", "\x00", "{0}", "\ud800"])
def test_unknown_uid_of_any_form_has_no_sessions(world: World, uid: str) -> None:
    world.login()
    none: dict[str, Any] = {"sessions": [], "ended": []}
    assert explain(world, uid) == {"node": "n1", "at_ms": WALL_MS, "outbox": 7, "more": 0, **none}


def test_report_has_all_fields_of_a_session(world: World) -> None:
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
        "slot_s": TICK / 2,
        "slots_from_hand": 56,
        "due_ms": WALL_MS + 30_000,
        "due_in_s": 27.75,
        "ends_as": {"code": 201, "reason": "idle_timeout"},
        "status": "online",
        "away_in_s": None,
        "token_expires_in_s": None,
        "unsent_bytes": 0,
        "watches": 0,
        "watched_rooms": 0,
        "behind_on_rooms": False,
        "rooms": [],
        "roster": None,
        "roster_claimed": 0,
        "quiet": False,
        "vouched": True,
    }
    world.login(device="phone", meta={"mood": "fine"}, status="away", quiet=True)
    _, phone = explain(world)["sessions"]
    assert (phone["device"], phone["status"], phone["meta"]) == ("phone", "away", {"mood": "fine"})
    assert phone["quiet"]
    assert (phone["watches"], phone["unsent_bytes"]) == (3, 10)


def test_session_ends_when_the_report_said(world: World) -> None:
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


def test_lost_connection_reports_the_rest_of_the_grace(world: World) -> None:
    handle = world.login()
    world.pass_time(10)
    world.sockets.close(handle)
    world.pass_time(1.5)
    session = only(world)
    assert [session[name] for name in ("link", "address", "transport", "unsent_bytes")] == [
        "lost",
        None,
        None,
        None,
    ]
    assert session["due_in_s"] == GRACE - 1.5
    assert session["ends_as"] == {"code": 200, "reason": "closed"}
    world.login("bob")
    (bob,) = explain(world, "bob", connected=lambda _: None)["sessions"]
    assert (bob["link"], bob["address"], bob["transport"]) == ("connected", None, None), (
        "without a connection nothing is known"
    )


def test_session_that_is_ending_has_no_slot(world: World) -> None:
    world.login()
    seen: list[dict[str, Any]] = []
    world.now += T + TICK
    world.guard.loop_ran(world.now)
    world.credits = False
    world.run_slot(lambda: seen.append(only(world)))
    assert [(s["slot"], s["slots_from_hand"], s["due_in_s"]) for s in seen] == [(None, None, None)]


def test_report_has_away_time_and_token_expiry() -> None:
    world = World(away_after=20.0, authenticator=WordAuthenticator())
    handle = world.sockets.connect()
    world.send(handle, protocol.login(None, token="ada:100"))
    world.pass_time(5)
    assert only(world)["away_in_s"] == 15.0
    assert only(world)["token_expires_in_s"] == pytest.approx(95, abs=0.5)
    world.beat(handle)
    world.pass_time(16)
    assert (only(world)["status"], only(world)["away_in_s"]) == ("away", None)


def test_report_has_what_a_session_has_to_do_with_its_roster() -> None:
    world = World(authenticator=WordAuthenticator())
    world.send(world.sockets.connect(), protocol.login(None, token="ada:100::bob,carl"))
    (session,) = explain(world, watching=Watches(0, roster="requested"))["sessions"]
    assert (session["roster"], session["roster_claimed"]) == ("requested", 2)


def test_session_too_silent_to_be_registered_is_reported_as_such(world: World) -> None:
    world.login()
    world.now += T + 2 * TICK
    list(world.engine.registration.registrations([*world.registry]))
    assert only(world)["vouched"] is False


@pytest.mark.parametrize(
    "meta_value",
    [
        "\x01" * ((META_TEXT_MAX_BYTES - 8) // 6),
        b"\xff" * ((META_TEXT_MAX_BYTES - 17) // 2),  # as hex
        [b""] * ((META_TEXT_MAX_BYTES - 8) // 12),  # {"$bin": ""} for each
        [{"$": 1}] * ((META_TEXT_MAX_BYTES - 8) // 9),
    ],
    ids=["text", "binary", "empty binaries", "maps"],
)
def test_largest_answer_fits_a_datagram(world: World, meta_value: object) -> None:
    uid, node = "u" * UID_MAX_BYTES, "n" * 64
    for n in range(MAX_SESSIONS_REPORTED + 2):
        world.login(uid, device=f"{n:0{DEVICE_MAX_BYTES}}", meta={"x": meta_value})
    answer = explain(
        world,
        uid,
        node=lambda: node,
        pending_changes=lambda: 2**40,
        connected=lambda _: ConnectionInfo("stream", "ffff:ffff:ffff:ffff::/64", 2**30),
        watching=Watches(2**30, by_default=2**30, roster="requested", rooms=40),
        ended=lambda _uid, _now: [world.changes[0]._replace(code=201)] * 20,
    )
    assert (answer["more"], len(answer["ended"])) == (2, MAX_ENDS_REPORTED)
    assert [len(session["rooms"]) for session in answer["sessions"]][:3] == [40, 24, 0]
    assert len(msgpack.packb([1, answer])) < min(60_000, ANSWER_BYTES)
