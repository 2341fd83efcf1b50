"""``presence explain``: its output, with nodes played by the test and with real servers."""

import json
import re
from typing import Any

import pytest
import trio

from presence import protocol
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.core.profiles import Profile
from presence.ops.explain import Explainer
from presence.rosters import PresenceRosters
from presence.server.server import Server
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.cli.conftest import Command
from tests.rooms.keys_by_hand import HandMadeRooms
from tests.store.driving import NOW_MS, Hand, end, events, login
from tests.support.nodes_that_answer import answer, ended, listening, session
from tests.transports.harness import Client

pytestmark = pytest.mark.usefixtures("clean_environment")
PATIENCE_S = 10.0


def test_an_online_user_is_explained_in_text(
    redis_server: EmbeddedRedis, command: Command, client: Redis, hand: Hand
) -> None:
    hand.apply(login("ann", "s1"), login("ann", "s2", "phone"))
    plain = session(
        "n1", "s1", transport="plain", unsent_bytes=12, meta={"mood": "fine"}, watches=2, quiet=True
    )
    gone = {"link": "lost", "address": None, "transport": None, "unsent_bytes": None}
    due = {"due_in_s": 3.5, "slots_from_hand": 8, "slot": 67, "ends_as": {"code": 200, "reason": "closed"}}
    lost = session("n1", "s2", "phone", token_expires_in_s=600.0, away_in_s=60.0, **gone, **due)
    with listening(redis_server.url, "n1", answer("n1", plain, lost)):
        result, as_json = command("explain", "ann"), command("explain", "ann", "--json")
        with Explainer(redis_server.url) as explainer:
            known = explainer.explain("ann")
    assert {**json.loads(as_json.out), "at_ms": 0} == {**known, "at_ms": 0}
    (entry,) = events(client)
    assert (result.status, result.out) == (
        0,
        "ann  online\n"
        "  why: online since 2023-11-14 22:13:20.000 UTC: the default device at node n1 logged in at "
        "2023-11-14 22:13:20.000 UTC\n"
        f"  event: {entry['id']}  online, login (1), session s1 at node n1\n"
        "  roster: none\n"
        "  default device at node n1, session s1\n"
        "    connected from 192.0.2.7, plain, 12 bytes unsent; logged in 2023-11-14 22:13:20.000 UTC\n"
        "    last packet 2023-11-14 22:13:47.500 UTC, 2.500 s ago; idle time-out 30 s, quiet\n"
        "    ends as idle_timeout (201) in 27.500 s: slot 115, 56 slots ahead\n"
        '    online, on record, watches 2 users, meta {"mood":"fine"}\n'
        "  phone at node n1, session s2\n"
        "    lost, in its grace period; logged in 2023-11-14 22:13:20.000 UTC\n"
        "    last packet 2023-11-14 22:13:47.500 UTC, 2.500 s ago; idle time-out 30 s\n"
        "    ends as closed (200) in 3.500 s: slot 67, 8 slots ahead\n"
        "    online, on record, away automatically in 60.0 s, token expires in 10.0 min\n"
        "  note: device phone at node n1 has lost its connection: its session ends as closed in 3.5 s unless "
        "the client returns\n"
        "  asked: 1 of 1 nodes answered\n",
    )


def test_of_watched_rooms_it_says_what_the_client_the_server_and_redis_have(
    redis_server: EmbeddedRedis, command: Command, client: Redis, hand: Hand
) -> None:
    hand.apply(login("ann", "s1"))
    rooms = HandMadeRooms(client, 1)
    rooms.fill("lobby", {"bob": "-", "cy": "-", "eve": "i"})
    rows = [
        {"room": "lobby", "sent": 1, "sent_version": 7, "count": 2, "version": 8, "read_age_s": 0.25},
        {"room": "hall", "sent": None, "sent_version": 3, "count": 0, "version": 9, "read_age_s": 31.0},
        {"room": "bar", "sent": None, "sent_version": 0, "count": 1, "version": 1, "read_age_s": 0.0},
    ]
    watching = session("n1", "s1", watched_rooms=3, behind_on_rooms=True, rooms=rows)
    with listening(redis_server.url, "n1", answer("n1", watching)):
        result = command("explain", "ann")
        as_json = json.loads(command("explain", "ann", "--json").out)
    lines = [line.strip() for line in result.out.splitlines()]
    assert "online, on record, watches 3 rooms" in lines
    first = lines.index("online, on record, watches 3 rooms") + 1
    assert lines[first : first + 4] == [
        "watches room lobby: was sent 1 (version 7); this server has 2 (version 8), "
        "read 0.250 s ago; Redis has 2",
        "watches room hall: was sent an older count (version 3); this server has 0 (version 9), "
        "read 31.000 s ago; Redis has 0",
        "watches room bar: was sent nothing yet (version 0); this server has 1 (version 1), "
        "read 0.000 s ago; Redis has 0",
        "is sent what is missing of rooms when its client takes it",
    ]
    assert [room["stored"] for room in as_json["sessions"][0]["rooms"]] == [2, 0, 0]


@pytest.mark.parametrize("rooms", ["lobby", [{"room": "lobby"}], [{"room": 7}], [None]])
def test_an_answer_with_damaged_rooms_is_none(
    redis_server: EmbeddedRedis, command: Command, hand: Hand, rooms: object
) -> None:
    hand.apply(login("ann", "s1"))
    with listening(redis_server.url, "n1", answer("n1", session("n1", "s1", rooms=rooms))):
        assert "asked: 0 of 1 nodes answered" in command("explain", "ann").out


def test_an_offline_user_is_explained_in_text(
    redis_server: EmbeddedRedis, command: Command, client: Redis, hand: Hand
) -> None:
    hand.apply(login("ann", "s1", at_ms=NOW_MS - 600_000))
    hand.apply(end("ann", "s1", code=201, at_ms=NOW_MS + 30_300, last_seen_ms=NOW_MS))
    ends = [ended("s1"), ended("s0", "tv", code=200, reason="closed", at_ms=NOW_MS - 86_400_000)]
    with listening(redis_server.url, "n1", answer("n1", ends=ends)):
        result = command("explain", "ann")
    entry = events(client)[-1]
    assert result.out == (
        "ann  offline\n"
        "  why: offline since 2023-11-14 22:13:50.300 UTC because nothing was received from it for 30.3 s: "
        "the default device, online since 22:03:20.000, last packet 22:13:20.000, "
        "deadline 22:13:50.000, ended 22:13:50.300 by node n1\n"
        f"  event: {entry['id']}  offline, idle_timeout (201), session s1 at node n1\n"
        "  roster: none\n"
        "  ended: tv at node n1, session s0, as closed (200) 2023-11-13 22:13:20.000 UTC; "
        "last packet 2023-11-14 22:13:20.000 UTC\n"
        "  asked: 1 of 1 nodes answered\n"
    )


def test_the_end_of_the_device_that_came_first_is_shown_while_the_user_stays_online(
    redis_server: EmbeddedRedis, command: Command, hand: Hand
) -> None:
    hand.apply(login("ann", "s1", "phone"), login("ann", "s2", "tv"), end("ann", "s1", "phone", code=201))
    with listening(
        redis_server.url, "n1", answer("n1", session("n1", "s2", "tv"), ends=[ended("s1", "phone")])
    ):
        out = command("explain", "ann").out
    assert "  ended: phone at node n1, session s1, as idle_timeout (201)" in out


@pytest.mark.parametrize(
    ("kept", "facts", "shown"),
    [
        (["bob", "carl"], {"roster": "followed", "watches": 2}, "watches 2 users, follows the roster"),
        (["bob"], {"roster": "requested"}, "waits for the roster to be read"),
        ([], {"watches": 1}, "watches 1 user, does not follow the roster"),
        (None, {}, ""),
        (None, {"roster_claimed": 3}, "does not follow the roster, its token has a roster of 3 users"),
        (
            None,
            {"roster": "followed", "roster_claimed": 1},
            "follows the roster, its token has a roster of 1 user",
        ),
        (["bob"], {"roster": ["forged"], "roster_claimed": None}, "does not follow the roster"),
    ],
    ids=["followed", "requested", "not followed", "none", "of a token", "followed, of a token", "damaged"],
)
def test_a_roster_and_the_sessions_that_follow_it_are_shown(
    redis_server: EmbeddedRedis,
    command: Command,
    hand: Hand,
    kept: list[str] | None,
    facts: dict[str, Any],
    shown: str,
) -> None:
    hand.apply(login("ann", "s1"))
    if kept is not None:
        with PresenceRosters(redis_server.url) as rosters:
            rosters.put("ann", kept)
    with listening(redis_server.url, "n1", answer("n1", session("n1", "s1", **facts))):
        lines = command("explain", "ann").out.splitlines()
    users = {None: "none", 0: "0 users", 1: "1 user", 2: "2 users"}
    assert f"  roster: {users[None if kept is None else len(kept)]}" in lines
    assert f"    online, on record{', ' * bool(shown)}{shown}" in lines


def test_nothing_is_said_about_the_roster_of_a_session_at_an_older_server(
    redis_server: EmbeddedRedis, command: Command, hand: Hand
) -> None:
    hand.apply(login("ann", "s1"))
    with PresenceRosters(redis_server.url) as rosters:
        rosters.put("ann", ["bob"])
    older = session("n1", "s1")
    del older["roster"], older["roster_claimed"]
    with listening(redis_server.url, "n1", answer("n1", older)):
        lines = command("explain", "ann").out.splitlines()
    assert "  roster: 1 user" in lines
    assert "    online, on record" in lines


def test_each_room_of_a_user_is_explained(
    redis_server: EmbeddedRedis, command: Command, client: Redis, hand: Hand
) -> None:
    rooms = HandMadeRooms(client, 1)
    hand.apply(login("ann", "s1", profile=Profile(rooms="game lobby")))
    hand.apply(login("ann", "s2", "tv", profile=Profile(rooms="late lobby")))
    rooms.fill("lobby", {"bob": "-", "ann": "a"})
    rooms.fill("game", {"ann": "i"})
    client.hset(rooms.keys.room_sources(0), "0", "7-1 epoch")
    lines = [line for line in command("explain", "ann").out.splitlines() if line.startswith("  in room")]
    assert lines == [
        "  in room game by default device: invisible: counts for the backend only, by event 5-0",
        "  in room late by tv: not yet a member: it has the events of shard 0 up to 7-1, and no projector "
        "runs, it lags, or max_rooms is reached",
        "  in room lobby by default device, tv: counts as away by event 5-1",
    ]
    found = json.loads(command("explain", "ann", "--json").out)["rooms"]
    assert [(each["room"], each["devices"], each["counts"]) for each in found] == [
        ("game", [""], False),
        ("late", ["tv"], False),
        ("lobby", ["", "tv"], True),
    ]
    assert json.loads(command("explain", "bob", "--json").out)["rooms"] == []


def test_control_characters_never_reach_the_terminal(
    redis_server: EmbeddedRedis, command: Command, hand: Hand
) -> None:
    hand.apply(login("ann", "s1", "tv\x1b[2J\nforged: line"))
    evil = session("n1\x1b]0;", "s\r1", "\u202e", address="\x07", meta={"a\x9b": "\n"})
    with listening(redis_server.url, "n1", answer("n1", evil)):
        out = command("explain", "ann").out
    assert all(line.isprintable() for line in out.splitlines())
    assert not re.search(r"^forged", out, re.MULTILINE)


async def test_the_reason_of_each_kind_of_end_is_explained(redis_server: EmbeddedRedis) -> None:
    quick = {"idle_timeout": 1.0, "min_idle_timeout": 1.0, "tick": 0.2, "disconnect_grace": 0.3}
    server, other = (Server(Settings(port=0, **quick), redis_server.url, 10, Clock()) for _ in range(2))  # type: ignore[arg-type]  # of numbers
    async with trio.open_nursery() as nursery:
        await nursery.start(other.serve)
        address = await nursery.start(server.serve)
        clients = {uid: Client(await trio.open_tcp_stream(*address)) for uid in ("silent", "out", "lost")}
        for uid, client in clients.items():
            await client.login(uid)
        await clients["out"].send(protocol.logout())
        await clients["lost"].stream.aclose()
        reports: dict[str, Any] = {}
        with trio.fail_after(PATIENCE_S), Explainer(redis_server.url) as explainer:
            for uid in clients:
                while (reports.get(uid, {}).get("event") or {}).get("type") != "offline":
                    reports[uid] = await trio.to_thread.run_sync(explainer.explain, uid)
        reasons = {uid: each["event"]["reason"] for uid, each in reports.items()}
        assert reasons == {"silent": "idle_timeout", "out": "logout", "lost": "closed"}
        assert "because nothing was received from it for " in reports["silent"]["why"]
        (end,) = reports["silent"]["ended"]
        # The user was seen once, at the login: that time is rounded down here, and up in the events.
        assert reports["silent"]["event"]["last_seen_ms"] + 1000 - end["deadline_ms"] in {0, 1}
        assert end["at_ms"] >= end["deadline_ms"]
        assert ", deadline " in reports["silent"]["why"]
        assert "because its client logged out: " in reports["out"]["why"]
        assert "closed without a logout, and it did not return" in reports["lost"]["why"]
        assert {each["node"] for row in reports.values() for each in row["ended"]} == {server.node.relay.node}
        assert [each["answer"] for each in reports["out"]["nodes"]] == ["answered"] * 2
        for client in clients.values():
            await client.stream.aclose()
        nursery.cancel_scope.cancel()
