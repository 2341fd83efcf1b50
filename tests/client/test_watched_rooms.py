"""Watched rooms: what the client knows of them, what it reports, and what it asks for after a reconnect."""

from typing import Any

import anyio
import pytest

from presence import protocol
from presence.client import (
    Dropped,
    Ended,
    LimitReached,
    NotAllowed,
    RequestTimeout,
    RoomChanged,
    RoomState,
    Unsupported,
    connect_blocking,
)
from presence.client.inbox import Inbox
from presence.protocol import Code, EncodeError, Kind, Packet
from tests.client.granting_server import GrantingServer
from tests.client.machine_driver import Driven
from tests.client.scripted_server import ScriptedServer
from tests.client.test_given_values import opening
from tests.support.backends import on_both_backends


def state(count: int, *members: str) -> RoomState:
    return RoomState(count, frozenset(members))


def change(room: str, state: RoomState | None, joined: str = "", left: str = "") -> RoomChanged:
    return RoomChanged(room, state, frozenset(joined.split()), frozenset(left.split()))


def answer(id: int | None, *rows: list[Any]) -> Packet:
    return protocol.ok(id, rooms=rows)


def push(*rows: list[Any]) -> Packet:
    return protocol.rooms(rows)


def ask(driven: Driven, *rooms: str, timeout_s: float = 5.0) -> int:
    return driven.ask(protocol.watch(rooms=rooms), timeout_s)


def known(driven: Driven) -> dict[str, RoomState]:
    return driven.machine.persistent_state.watched_rooms.states()


def changes(driven: Driven) -> list[RoomChanged]:
    return [each for each in driven.pushes if isinstance(each, RoomChanged)]


def requests(packets: list[Packet]) -> list[tuple[Kind, list[str]]]:
    kinds = (Kind.WATCH, Kind.UNWATCH, Kind.QUERY)
    return [(Kind(each.kind), each.payload["rooms"]) for each in packets if each.kind in kinds]


@pytest.fixture
def online() -> Driven:
    """A client that watches two rooms, of one of which it is shown the members."""
    driven = Driven()
    driven.log_in()
    driven.receive(answer(ask(driven, "lobby", "hall"), ["lobby", 2, ["ann", "bob"]], ["hall", 900]))
    return driven


# On one connection


def test_the_answer_is_returned_and_no_change(online: Driven) -> None:
    assert changes(online) == []
    assert known(online) == {"lobby": state(2, "ann", "bob"), "hall": RoomState(900)}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (["lobby", 2, ["cy"], ["ann"]], change("lobby", state(2, "bob", "cy"), "cy", "ann")),
        (["lobby", 3, ["cy"], []], change("lobby", state(3, "ann", "bob", "cy"), "cy")),
        (["lobby", 3, [], []], change("lobby", state(3, "ann", "bob"))),
        (["lobby", 2, ["cy", "bob"]], change("lobby", state(2, "bob", "cy"), "cy", "ann")),
        (["lobby", 2], change("lobby", RoomState(2))),
        (
            ["lobby", 2, ["cy"], ["ann"], "of a later version"],
            change("lobby", state(2, "bob", "cy"), "cy", "ann"),
        ),
        (["hall", 901], change("hall", RoomState(901))),
        (["hall", 1, ["cy"]], change("hall", state(1, "cy"))),
        (["lobby", None], change("lobby", None)),
    ],
)
def test_a_row_is_a_change_with_what_is_known_to_differ(
    online: Driven, row: list[Any], expected: RoomChanged
) -> None:
    online.receive(push(row))
    assert changes(online) == [expected]
    assert known(online).get(expected.room) == expected.state


@pytest.mark.parametrize(
    "row", [["lobby", 2, ["bob", "ann"]], ["lobby", 2, [], []], ["hall", 900], ["other", 1], ["other", None]]
)
def test_no_change_is_reported_of_a_row_that_says_nothing_new(online: Driven, row: list[Any]) -> None:
    before = known(online)
    online.receive(push(row))
    assert (changes(online), known(online)) == ([], before)


def test_rows_follow_each_other_in_one_packet_and_in_several(online: Driven) -> None:
    online.receive(push(["lobby", 1, [], ["ann"]], ["lobby", 2, ["cy"], []]), push(["lobby", 1, [], ["bob"]]))
    assert [each.state for each in changes(online)] == [
        state(1, "bob"),
        state(2, "bob", "cy"),
        state(1, "cy"),
    ]


def test_a_room_that_may_no_longer_be_watched_is_not_watched_again(online: Driven) -> None:
    online.receive(push(["lobby", None]))
    assert requests(online.reconnect()) == [(Kind.WATCH, ["hall"])]


def test_a_second_watch_of_a_room_reports_what_its_answer_shows(online: Driven) -> None:
    online.receive(answer(ask(online, "lobby"), ["lobby", 1, ["cy"]]))
    assert changes(online) == [change("lobby", state(1, "cy"), "cy", "ann bob")]


@pytest.mark.parametrize(("code", "error"), [(Code.NOT_ALLOWED, NotAllowed), (Code.TOO_LARGE, LimitReached)])
def test_a_refused_watch_adds_no_room_and_ends_none(online: Driven, code: Code, error: type) -> None:
    before, id = known(online), ask(online, "lobby", "bar")
    online.receive(protocol.error(id, code, "no"), push(["bar", 1], ["lobby", 1, [], ["ann"]]))
    assert isinstance(online.answers[id], error)
    assert known(online) == before | {"lobby": state(1, "bob")}
    online.lose()
    assert online.machine.error is None, "the client comes back"


@pytest.mark.parametrize("kind", [Kind.WATCH, Kind.QUERY])
def test_a_server_without_rooms_supports_no_request_for_them(online: Driven, kind: Kind) -> None:
    packet = protocol.watch(rooms=["bar"]) if kind is Kind.WATCH else protocol.query(rooms=["bar"])
    id = online.ask(packet)
    online.receive(protocol.ok(id, presence={}))
    assert isinstance(online.answers[id], Unsupported)
    assert known(online).keys() == {"lobby", "hall"}


def test_a_query_watches_nothing_and_changes_nothing_that_is_known(online: Driven) -> None:
    before, id = known(online), online.ask(protocol.query(rooms=["lobby", "bar"]))
    online.receive(answer(id, ["lobby", 0, []], ["bar", 1, ["cy"]]), push(["bar", 2, ["dan"], []]))
    assert (known(online), changes(online)) == (before, [])


# Watches that nobody waits for


def test_a_watch_that_times_out_is_undone_except_for_rooms_that_are_watched(online: Driven) -> None:
    id = ask(online, "lobby", "bar")
    online.run(5.0, answering=True)
    assert isinstance(online.answers[id], RequestTimeout)
    assert requests(online.sent)[-1] == (Kind.UNWATCH, ["bar"])


def test_the_late_answer_counts_because_later_rows_follow_from_it(online: Driven) -> None:
    id = ask(online, "lobby", "bar")
    online.run(5.0, answering=True)
    online.receive(
        answer(id, ["lobby", 3, ["ann", "bob", "cy"]], ["bar", 1]), push(["lobby", 2, [], ["ann"]])
    )
    assert known(online)["lobby"] == state(2, "bob", "cy")
    assert [each.state for each in changes(online)] == [state(3, "ann", "bob", "cy"), state(2, "bob", "cy")]
    assert "bar" not in known(online)


def test_the_late_answer_to_a_query_does_not_count(online: Driven) -> None:
    id = online.ask(protocol.query(rooms=["lobby"]), 5.0)
    online.run(5.0, answering=True)
    online.receive(answer(id, ["lobby", 0, []]))
    assert changes(online) == []


def test_a_room_that_another_call_asks_for_is_not_undone(online: Driven) -> None:
    ids = ask(online, "bar"), ask(online, "bar", timeout_s=9.0)
    online.run(5.0, answering=True)
    assert requests(online.sent)[-1] == (Kind.WATCH, ["bar"])
    online.receive(answer(ids[0], ["bar", 1]))
    assert "bar" not in known(online), "the call that waits has no answer yet"
    online.run(4.0, answering=True)
    assert requests(online.sent)[-1] == (Kind.UNWATCH, ["bar"]), "and now no call waits"


# Unwatch


@pytest.mark.parametrize("rooms", [["lobby"], None])
def test_an_unwatch_takes_effect_immediately(online: Driven, rooms: list[str] | None) -> None:
    online.machine.unwatch_rooms(rooms, 5.0, online.now)
    online.note([])
    online.receive(push(["lobby", 1, [], ["ann"]]))
    assert changes(online) == []
    assert known(online).keys() == ({"hall"} if rooms else set())
    kind, named = requests(online.sent)[-1]
    assert (kind, {*named}) == (Kind.UNWATCH, {*(rooms or ("hall", "lobby"))})


def test_an_unwatch_of_all_names_rooms_that_are_asked_for(online: Driven) -> None:
    id = ask(online, "bar")
    online.machine.unwatch_rooms(None, 5.0, online.now)
    online.note([])
    assert {*requests(online.sent)[-1][1]} == {"lobby", "hall", "bar"}
    online.receive(answer(id, ["bar", 1]))
    assert known(online) == {}


def test_an_unwatch_of_more_rooms_than_fit_into_a_request_is_sent_in_parts(online: Driven) -> None:
    for first in (0, 50):
        ask(online, *(f"r{number}" for number in range(first, first + 50)))
    before = len(online.sent)
    online.machine.unwatch_rooms(None, 5.0, online.now)
    online.note([])
    assert [len(rooms) for _, rooms in requests(online.sent[before:])] == [64, 38]


def test_an_unwatch_of_everything_ends_the_watches_of_rooms_on_and_off_line(online: Driven) -> None:
    online.machine.unwatch(["bob"], 5.0, online.now)
    assert known(online).keys() == {"lobby", "hall"}
    online.machine.unwatch(None, 5.0, online.now)
    assert known(online) == {}
    online.receive(answer(ask(online, "lobby"), ["lobby", 0, []]))
    online.lose()
    online.machine.unwatch(None, 5.0, online.now)
    assert known(online) == {}


def test_without_a_connection_an_unwatch_sends_nothing(online: Driven) -> None:
    online.lose()
    assert online.machine.unwatch_rooms(["lobby"], 5.0, online.now) is None
    assert known(online).keys() == {"hall"}
    with pytest.raises(EncodeError):
        online.machine.unwatch_rooms(["the hall"], 5.0, online.now)
    assert online.machine.unwatch_rooms(None, 5.0, online.now) is None
    assert known(online) == {}
    online.machine.close()
    for rooms in (None, ["lobby"]):
        with pytest.raises(Ended):
            online.machine.unwatch_rooms(rooms, 5.0, online.now)


# After a reconnect


def test_rooms_are_watched_again_and_differences_are_changes(online: Driven) -> None:
    (watch,) = online.reconnect()
    assert (watch.payload["uids"], {*watch.payload["rooms"]}) == ([], {"lobby", "hall"})
    assert known(online)["lobby"] == state(2, "ann", "bob"), "until the answer"
    online.receive(answer(watch.id, ["lobby", 2, ["bob", "cy"]], ["hall", 900]))
    assert changes(online) == [change("lobby", state(2, "bob", "cy"), "cy", "ann")]


def test_members_that_follow_the_answer_are_one_change_with_their_row(online: Driven) -> None:
    (watch,) = online.reconnect()
    rows = ["lobby", 3], ["hall", 900]
    online.receive(protocol.ok(watch.id, rooms=rows, later=["lobby"]))
    assert known(online)["lobby"] == state(2, "ann", "bob"), "until its row"
    online.receive(push(["lobby", 3, ["ann", "bob", "cy"]]))
    assert changes(online) == [change("lobby", state(3, "ann", "bob", "cy"), "cy")]


def test_members_that_follow_and_are_the_same_are_no_change(online: Driven) -> None:
    (watch,) = online.reconnect()
    online.receive(protocol.ok(watch.id, rooms=[["lobby", 2], ["hall", 900]], later=["lobby"]))
    online.receive(push(["lobby", 2, ["ann", "bob"]]))
    assert changes(online) == []


def test_a_room_watched_for_the_first_time_has_a_count_until_its_members_follow(online: Driven) -> None:
    id = ask(online, "bar")
    online.receive(protocol.ok(id, rooms=[["bar", 2]], later=["bar"]))
    assert known(online)["bar"] == RoomState(2, None)
    online.receive(push(["bar", 2, ["ann", "bob"]]))
    assert changes(online) == [change("bar", state(2, "ann", "bob"))]


def test_a_late_answer_whose_members_follow_keeps_what_is_known(online: Driven) -> None:
    id = ask(online, "lobby", timeout_s=1.0)
    online.run(1.1)
    online.receive(protocol.ok(id, rooms=[["lobby", 2]], later=["lobby"]))
    assert known(online)["lobby"] == state(2, "ann", "bob")


def test_a_call_that_the_loss_of_the_connection_ends_adds_no_room(online: Driven) -> None:
    ask(online, "bar")
    (watch,) = online.reconnect()
    assert "bar" not in watch.payload["rooms"]
    online.machine.unwatch_rooms(None, 5.0, online.now)
    online.note([])
    assert "bar" not in online.sent[-1].payload["rooms"]


def test_rooms_that_are_refused_end_and_the_others_are_watched(online: Driven) -> None:
    rooms = [f"r{number}" for number in range(9)]
    online.receive(answer(ask(online, *rooms), *([room, 1] for room in rooms)))
    sent = online.reconnect()
    asked = 0
    while asked < len(sent):
        watch = sent[asked]
        asked += 1
        before = len(online.sent)
        if "r3" in watch.payload["rooms"]:
            online.receive(protocol.error(watch.id, Code.NOT_ALLOWED, "no"))
        else:
            online.receive(answer(watch.id, *([room, 1] for room in watch.payload["rooms"])))
        sent += online.sent[before:]
    assert [each for each in changes(online) if each.state is None] == [change("r3", None)]
    assert known(online).keys() == {"lobby", "hall", *rooms} - {"r3"}
    assert asked <= 10, "few requests"


def test_a_busy_server_is_asked_again(online: Driven) -> None:
    (watch,) = online.reconnect()
    online.receive(protocol.error(watch.id, Code.BUSY, "later", 2.0))
    before = len(online.sent)
    online.run(3.5, answering=True)
    assert [(kind, {*rooms}) for kind, rooms in requests(online.sent[before:])] == [
        (Kind.WATCH, {"lobby", "hall"})
    ]
    assert changes(online) == []


def test_rooms_end_on_a_server_that_has_none(online: Driven) -> None:
    (watch,) = online.reconnect()
    online.receive(protocol.ok(watch.id, presence={}))
    assert {each.room: each.state for each in changes(online)} == {"lobby": None, "hall": None}
    assert known(online) == {}
    assert online.reconnect() == []


def test_rooms_that_are_unwatched_meanwhile_are_not_watched_by_the_answer(online: Driven) -> None:
    (watch,) = online.reconnect()
    online.machine.unwatch_rooms(["lobby"], 5.0, online.now)
    online.note([])
    online.receive(answer(watch.id, ["lobby", 5], ["hall", 900]))
    assert (known(online), changes(online)) == ({"hall": RoomState(900)}, [])


# The program's side


@on_both_backends()
async def test_the_program_gets_states_and_changes() -> None:
    script = ScriptedServer()
    async with opening(script) as client:
        script.answer = {"rooms": [["lobby", 1, ["bob"]], ["hall", 900]]}
        assert await client.query_rooms(["lobby", "hall"]) == {
            "lobby": state(1, "bob"),
            "hall": RoomState(900),
        }
        assert client.watched_rooms == {}
        assert await client.watch_rooms(["lobby", "hall"]) == client.watched_rooms
        await script.send(push(["lobby", 2, ["cy"], []]), push(["hall", None]))
        found = [await anext(client.room_changes()), await client.receive("rooms")]
        assert found == [change("lobby", state(2, "bob", "cy"), "cy"), change("hall", None)]
        assert client.watched_rooms == {"lobby": state(2, "bob", "cy")}
        script.answer = {}
        await client.unwatch_rooms()
        assert client.watched_rooms == {}


@on_both_backends()
async def test_the_newest_state_is_returned_if_a_push_comes_behind_the_answer() -> None:
    script = ScriptedServer()
    async with opening(script) as client:
        watch = client._link.machine.request(protocol.watch(rooms=["lobby"]), 5.0, client._link.now())
        rows = answer(watch, ["lobby", 1, ["bob"]]), push(["lobby", 2, ["cy"], []])
        client._link.machine.received(b"".join(map(protocol.encode, rows)), client._link.now())
        watched = client._link.machine.persistent_state.watched_rooms
        assert watched.newest({"lobby": state(1, "bob"), "hall": RoomState(3)}) == {
            "lobby": state(2, "bob", "cy"),
            "hall": RoomState(3),
        }


@on_both_backends(autojump=True)
async def test_a_call_that_is_cancelled_leaves_no_watch() -> None:
    script = ScriptedServer()
    script.answers = False
    async with opening(script) as client:
        with anyio.move_on_after(1.0):
            await client.watch_rooms(["lobby"])
        await anyio.sleep(1.0)
        assert requests(script.received) == [(Kind.WATCH, ["lobby"]), (Kind.UNWATCH, ["lobby"])]


@pytest.mark.parametrize(
    ("rooms", "error"),
    [("lobby", TypeError), (["the lobby"], EncodeError), ([f"r{n}" for n in range(65)], EncodeError)],
)
@on_both_backends()
async def test_what_cannot_be_rooms_is_refused_at_once(rooms: Any, error: type[Exception]) -> None:
    script = ScriptedServer()
    async with opening(script) as client:
        for call in (client.watch_rooms, client.query_rooms, client.unwatch_rooms):
            with pytest.raises(error):
                await call(rooms)
    assert requests(script.received) == []


def test_changes_that_are_not_read_are_dropped_with_a_count() -> None:
    inbox = Inbox(max_messages=1, max_changes=2)
    pushed = [change("lobby", RoomState(number)) for number in range(4)]
    for each in pushed:
        inbox.put(each)
    assert [inbox.pop("rooms") for _ in range(4)] == [Dropped("rooms", 2), *pushed[2:], None]


def test_a_script_watches_rooms_alike() -> None:
    server = GrantingServer()
    with connect_blocking(*server.address, uid="ann") as client:
        for call in (client.watch_rooms, client.query_rooms):
            with pytest.raises(Unsupported, match="no rooms"):
                call(["lobby"])
        client.unwatch_rooms(["lobby"])
        assert client.watched_rooms == {}
    server.close()
    kinds = [kind for kind, rooms in requests(server.received) if rooms == ["lobby"]]
    assert kinds == [Kind.WATCH, Kind.QUERY, Kind.UNWATCH]
