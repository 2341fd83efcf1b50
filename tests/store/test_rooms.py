"""The rooms of users in records and events: each rule is a row, run on a real server.

A user is in the rooms of all their sessions together.
"""

import json
import time
from contextlib import closing
from typing import Any

import pytest

from loadtest.checker import Showing
from presence.core.profiles import Profile
from presence.outbox.event_counts import Transitions
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.steps import Compare, Counter
from presence.store.keys import Keys
from presence.store.records import online_state
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from tests.store.driving import (
    Event,
    Hand,
    end,
    events,
    listen,
    login,
    play,
    record,
    register,
    rows,
    update,
    written,
)
from tests.store.servers import Server
from tests.store.test_rules import NODES, RULES

KEYS = Keys()
META = KEYS.shard_meta(0)
HALL = Profile(rooms="hall")

# Rows as in test_rules. ``in=hall,lobby``: rooms of a session. Outcome: events -> rooms of users online.
# An event is type, uid, reason unless it says the same, status, ``[rooms of the user]``, ``-rooms left``.
ROOMS = """
# One session
all events of a user have the rooms
    a login u s1 in=hall,lobby & update u s1 as=away in=hall,lobby & update u s1 as=busy in=hall,lobby
    & end u s1
    online login [hall lobby]; away away [hall lobby]; away back busy [hall lobby]
    …; offline logout [hall lobby] ->
events of a user without rooms have none
    a login u s1 & update u s1 as=busy & end u s1
    online login; update updated busy; offline logout ->
a user who stays goes to another room
    a login u s1 in=hall & update u s1 in=lobby
    online login [hall]; rooms [lobby] -hall -> u/lobby
into a first one, and out of the last one
    a login u s1; a update u s1 in=hall; a update u s1
    online login; rooms [hall]; rooms -hall ->
the same rooms are no event
    a login u s1 in=hall & update u s1 in=hall
    online login [hall] -> u/hall
a change of status and rooms has the status first
    a login u s1 in=hall & update u s1 as=away in=lobby & end u s1
    online login [hall]; away away [lobby]; rooms away [lobby] -hall; offline logout [lobby] ->
a take-over with the same rooms is no event
    a login u s1 in=hall; b login u s2 in=hall
    online login [hall] -> u/hall
nor is a return to the same node
    a login u s1 in=hall & login u s2 in=hall
    online login [hall] -> u/hall
a take-over without the rooms leaves them
    a login u s1 in=hall; b login u s2 & end u s2
    online login [hall]; rooms -hall; offline logout ->
a login that yields changes nothing
    b login u sb in=hall; a login u sa age=1.5 in=lobby
    online login [hall] -> u/hall
a registration has the rooms
    a register u s1 in=hall & register u s1 in=hall & register u s1 in=lobby
    online returned [hall]; rooms [lobby] -hall -> u/lobby
a lost period has none
    a restoring end u s1
    online returned; offline logout ->
# Several devices
a user is in the rooms of all devices
    a login u s1 phone in=hall; b login u s2 desk in=attic,hall
    online login [hall]; rooms [attic hall] -> u/attic,hall
and stays in a room that one of them has left
    a login u s1 phone in=hall & login u s2 desk in=hall & update u s1 phone & end u s2 desk & end u s1 phone
    online login [hall]; rooms -hall; offline logout ->
a second device in the same rooms is no event, neither is its end
    a login u s1 phone in=hall & login u s2 desk in=hall & end u s1 phone
    online login [hall] -> u/hall
a device that goes leaves the rooms that only it was in
    a login u s1 phone in=hall; b login u s2 desk in=lobby; a end u s1 phone
    online login [hall]; rooms [hall lobby]; rooms [lobby] -hall -> u/lobby
a device without rooms changes nothing
    a login u s1 phone in=hall & login u s2 desk & end u s2 desk
    online login [hall] -> u/hall
# Ends by others
a sweep of one device
    a login u s1 phone in=hall; b login u s2 desk in=lobby; a is fenced; a is swept
    online login [hall]; rooms [hall lobby]; rooms [lobby] -hall -> u/lobby
a sweep of the last one
    a login u s1 in=hall; a is fenced; a is swept
    online login [hall]; offline node_down [hall] ->
a retirement
    a login u s1 phone in=hall & login u s2 desk in=lobby; a anew; a register u s2 desk in=lobby; a retires
    online login [hall]; rooms [hall lobby]; rooms [lobby] -hall -> u/lobby
a retirement of the last one
    a login u s1 in=hall; a anew; a retires
    online login [hall]; offline node_down [hall] ->
# Pending logins
the rooms of a pending login take the place of those that end
    b login u sb phone in=hall; a hold u sa desk age=5 in=lobby; b end u sb phone age=1
    online login [hall]; rooms [lobby] -hall -> u/lobby
the same rooms are no event
    b login u sb phone in=hall; a hold u sa desk age=5 in=hall; b end u sb phone age=1
    online login [hall] -> u/hall
of the same device
    b login u sb phone in=hall; a hold u sa phone age=5 in=lobby; b end u sb phone age=1
    online login [hall]; rooms [lobby] -hall -> u/lobby
several
    b login u sb phone in=attic,hall; a hold u s1 desk age=5 in=lobby & hold u s2 tv age=5 in=hall;
    b end u sb phone age=1
    online login [attic hall]; rooms [hall lobby] -attic -> u/hall,lobby
the first rooms of a shard may be those of a pending login
    b login u sb phone; a hold u sa desk age=5 in=lobby; b end u sb phone age=1
    online login; rooms [lobby] -> u/lobby
by a sweep
    b login u sb phone in=hall; a hold u sa desk age=5 in=lobby; b is fenced; b is swept
    online login [hall]; rooms [lobby] -hall -> u/lobby
a lost period continued by a pending login
    a hold u sa desk age=5 in=lobby; b restoring end u sb phone age=1
    online returned; rooms [lobby] -> u/lobby
# Invisible users
the backend is told the rooms of an invisible user
    a login u s1 as=invisible in=hall & update u s1 as=invisible in=lobby & end u s1
    online login invisible [hall]; rooms invisible [lobby] -hall; offline logout invisible [lobby] ->
who becomes visible
    a login u s1 as=invisible in=hall & update u s1 in=hall & update u s1 as=invisible in=hall
    online login invisible [hall]; update updated [hall]; update updated invisible [hall] -> u/hall
who is it without the session that did it
    a login u s1 phone in=hall & update u s1 phone in=hall hides=+i & login u s2 desk in=lobby;
    a end u s1 phone
    online login [hall]; update updated invisible [hall]; rooms invisible [hall lobby]
    …; rooms invisible [lobby] -hall -> u/lobby
who hides when they were active
    a login u s1 in=hall knows=l & update u s1 in=lobby & end u s1
    online login hides [hall]; rooms hides [lobby] -hall; offline logout hides [lobby] ->
"""


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


def line(event: Event) -> str:
    words = [event["type"], event["reason"] if event["type"] != "rooms" else ""]
    words += ["invisible"] if "invisible" in event else []
    words += [event["status"]] if event.get("status") in {"busy", "dnd"} or event["type"] == "rooms" else []
    words += ["hides"] if event.get("hide") == "last_seen" else []
    words += [f"[{event['rooms']}]"] if "rooms" in event else []
    words += [f"-{event['rooms_left']}"] if "rooms_left" in event else []
    return " ".join(word for word in words if word not in {"", "online"} or word == event["type"])


@pytest.mark.parametrize("device_events", [False, True])
@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(ROOMS))
def test_a_rule(server: Server, rule: str, steps: str, outcome: str, device_events: bool) -> None:
    expected, on_record = (part.strip() for part in f" {outcome} ".split("->"))
    transitions, showing = Transitions(), Showing()
    shape = Shape(KEYS, 1000, 10**13, device_events=device_events)
    with closing(RedisStore(server.url, shape)) as store:
        hands = {name: Hand(store, name) for name in NODES}
        for hand in hands.values():
            hand.open()
        for step in steps.split("; "):
            reply = play(hands, step)
            assert reply.status is ReplyStatus.OK
            transitions.count_events(reply.event_counts)
    stream = events(server.client)
    assert "; ".join(line(each) for each in stream if each["type"] != "device") == expected
    assert [broken for each in stream for broken in showing.check_entry(each["id"], each)] == []
    assert transitions.report() == written(stream)
    found = {}
    raw: Any = server.client.hgetall(KEYS.online(0))
    for uid, text in raw.items():
        state = online_state(text)
        assert state is not None
        assert showing.shown[uid.decode()].rooms == {*state.get("rooms", ())}
        if "rooms" in state:
            found[uid.decode()] = ",".join(state["rooms"])
    assert found == dict(each.split("/") for each in on_record.split())
    assert (server.client.hget(META, "rooms") == b"1") is ("in=" in steps and "[" in expected)


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(RULES))
def test_of_users_without_rooms_nothing_is_told(server: Server, rule: str, steps: str, outcome: str) -> None:
    with closing(RedisStore(server.url, Shape(KEYS, 1000, 10**13))) as store:
        hands = {name: Hand(store, name) for name in NODES}
        for hand in hands.values():
            hand.open()
        hands["c"].apply(login("other", "s", profile=HALL))
        before = len(events(server.client))
        for step in steps.split("; "):
            play(hands, step)
    assert not any("rooms" in each for each in events(server.client)[before:])


def test_the_first_rooms_of_a_shard_are_noted_after_their_entry(a: Hand, server: Server) -> None:
    """Because a call whose first write is its first entry can be repeated; see `carry_out_effects`."""
    ahead: Any = f"{int(time.time() * 1000) + 3_600_000}-7"
    server.client.xadd(KEYS.events(0), {"type": "x"}, id=ahead)
    server.client.xdel(KEYS.events(0), ahead)
    a.apply(login("u", "s1", profile=HALL))
    assert [(each["uid"], each["rooms"]) for each in events(server.client)] == [("u", "hall")]
    assert server.client.hget(META, "rooms") == b"1"


def test_the_record_has_the_rooms_of_each_session(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", profile=Profile(rooms="hall lobby")), login("u", "s2", "desk"))
    text: Any = server.client.hget(KEYS.online(0), "u")
    assert record(server.client, "u")["sessions"]["phone"]["rooms"] == "hall lobby"
    state = online_state(text)
    assert state is not None
    assert state["rooms"] == ["hall", "lobby"]
    assert {each["device"]: each.get("rooms") for each in state["sessions"]} == {
        "phone": ["hall", "lobby"],
        "desk": None,
    }


def test_a_record_without_rooms_is_as_before(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", profile=HALL), update("u", "s1"), login("w", "s2"))
    of_u, of_w = (server.client.hget(KEYS.online(0), uid) for uid in ("u", "w"))
    assert of_u is not None
    assert of_w is not None
    assert b"rooms" not in of_u
    assert len(json.loads(of_u)["sessions"][""]) == len(json.loads(of_w)["sessions"][""])


def test_rooms_are_in_the_order_of_their_bytes(a: Hand, server: Server) -> None:
    names = ['"', "%d", "/", "B", "\\", "a", "a!", "a:1", "é", "€", "🎲"]
    assert names == sorted(names, key=str.encode)
    a.apply(login("u", "s0"))
    for i in (7, 3, 9, 0, 10, 1, 8, 5, 2, 6, 4):
        others = sorted({names[i], names[(i + 5) % len(names)]}, key=str.encode)
        a.apply(login("u", f"s{i + 1}", f"d{i}", profile=Profile(rooms=" ".join(others))))
    assert events(server.client)[-1]["rooms"] == " ".join(names)
    state = online_state(server.client.hget(KEYS.online(0), "u"))  # type: ignore[arg-type]  # redis-py's
    assert state is not None
    assert state["rooms"] == names


def test_watchers_of_a_user_are_not_told_the_rooms(a: Hand, server: Server) -> None:
    listener = listen(server.client, KEYS.watchers_channel(0), KEYS.user_channel("u"))
    a.apply(login("u", "s1"))
    a.apply(update("u", "s1", profile=HALL))
    a.apply(end("u", "s1"))
    kinds = []
    while message := listener.get_message(timeout=0.3):
        kinds.append(json.loads(message["data"])["type"])
    assert kinds == ["online", "offline"]


def test_a_comparison_finds_a_session_with_other_rooms(a: Hand) -> None:
    shown = Profile(rooms="hall lobby")
    a.apply(login("u", "s1", profile=shown), login("w", "s2"))

    def missing(*profiles: Profile) -> tuple[int, ...]:
        names: Any = (("u", "", "s1"), ("w", "", "s2"))
        reply = a.send(Compare(0, Counter("a", 1, a.n), a.replication_id, "0", 100, names, profiles))
        assert isinstance(reply, Reply)
        return reply.missing

    assert missing(shown, Profile()) == ()
    assert missing(HALL, Profile()) == (0,)
    assert missing(Profile(), HALL) == (0, 1)


def test_registrations_after_a_loss_of_all_data_have_the_rooms(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", profile=HALL))
    server.client.flushall()
    a.open(2)
    assert server.client.hget(META, "rooms") is None
    a.apply(register("u", "s1", profile=HALL))
    (event,) = events(server.client)
    assert (event["type"], event["reason"], event["rooms"]) == ("online", "returned", "hall")
    assert server.client.hget(META, "rooms") == b"1"


# Values that no node writes


@pytest.mark.parametrize("damage", [7, ["hall"], {"a": 1}, None, ""])
def test_damaged_rooms_count_as_none(a: Hand, server: Server, damage: object) -> None:
    a.apply(login("u", "s1", "phone", profile=HALL), login("u", "s2", "desk"), login("w", "s3", profile=HALL))
    for uid, device in (("u", "phone"), ("w", "")):
        text = record(server.client, uid)
        text["sessions"][device]["rooms"] = damage
        server.client.hset(KEYS.online(0), uid, json.dumps(text))
        state = online_state(json.dumps(text).encode())
        assert state is not None
        assert "rooms" not in state
    a.apply(
        update("u", "s2", "desk", profile=Profile(rooms="lobby")), end("u", "s1", "phone"), end("w", "s3")
    )
    told = [(each["type"], each.get("rooms"), each.get("rooms_left")) for each in events(server.client)[2:]]
    assert told == [("rooms", "lobby", None), ("offline", None, None)]


def test_spaces_too_many_are_no_rooms(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", profile=HALL), login("u", "s2", "desk", profile=HALL))
    text = record(server.client, "u")
    text["sessions"]["phone"]["rooms"] = "  lobby   attic "
    server.client.hset(KEYS.online(0), "u", json.dumps(text))
    state = online_state(json.dumps(text).encode())
    assert state is not None
    assert state["rooms"] == ["attic", "hall", "lobby"]
    a.apply(end("u", "s1", "phone"))
    event = events(server.client)[-1]
    assert (event["rooms"], event["rooms_left"]) == ("hall", "attic lobby")


def test_a_login_into_a_record_that_is_unreadable_tells_its_rooms(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", "phone", profile=HALL))
    server.client.hset(KEYS.online(0), "u", '{"id":"1-1","since_ms":1,"sessions":{"phone":7}}')
    a.apply(login("u", "s2", "desk", profile=Profile(rooms="lobby")))
    event = events(server.client)[-1]
    assert (event["type"], event["since_id"], event["rooms"]) == ("rooms", "1-1", "lobby")


def test_the_end_of_a_user_whose_record_is_lost_names_no_rooms(a: Hand, server: Server) -> None:
    a.apply(login("u", "s1", profile=HALL))
    server.client.hdel(KEYS.online(0), "u")
    a.apply(end("u", "s1"))
    assert [(each["type"], each.get("rooms")) for each in events(server.client)] == [
        ("online", "hall"),
        ("offline", None),
    ]
