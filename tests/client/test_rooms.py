"""Rooms: what an update makes of them, and what later logins carry."""

from typing import Any

import pytest

from presence import protocol
from presence.client import LimitReached, NotAllowed, Unsupported, connect, connect_blocking
from presence.client.state_machine import ClientMachine
from presence.protocol import Code, EncodeError, Kind, Packet
from tests.client.granting_server import GrantingServer
from tests.client.machine_driver import Driven, login_ok
from tests.client.scripted_server import ScriptedServer
from tests.client.test_given_values import opening
from tests.support.backends import on_both_backends

LONG = [f"{number:02}" + "r" * 62 for number in range(16)]  # too long for a login


def in_rooms(rooms: list[str], joined: list[str] | None) -> Driven:
    """Return a client that has logged in with rooms; `joined`: as the server says."""
    driven = Driven()
    login = protocol.login("ann", device="phone", rooms=rooms)
    driven.machine = ClientMachine(login, driven.now, chance=lambda: 0.5)
    driven.establish()
    driven.receive(granted(login_ok(), joined))
    return driven


def granted(ok: Packet, joined: list[str] | None) -> Packet:
    return ok._replace(payload={**ok.payload, **({} if joined is None else {"joined": joined})})


def update(driven: Driven, joined: list[str] | None, **change: Any) -> None:
    """Send an update, which the server grants."""
    driven.receive(granted(protocol.ok(driven.ask(protocol.update(**change))), joined))


def rooms_of_next_login(driven: Driven) -> list[str] | None:
    rooms: list[str] | None = driven.machine.persistent_state.login_packet(None).payload.get("rooms")
    return rooms


def own_requests(driven: Driven) -> list[dict[str, Any]]:
    return [dict(each.payload) for each in driven.sent if each.kind == Kind.UPDATE]


def test_a_login_has_the_rooms_and_so_have_later_ones() -> None:
    driven = in_rooms(["lobby", "hall"], ["hall", "lobby"])
    assert driven.sent[0].payload["rooms"] == ["lobby", "hall"]
    assert rooms_of_next_login(driven) == ["lobby", "hall"]
    assert driven.machine.persistent_state.joined == ["hall", "lobby"]


@pytest.mark.parametrize(
    ("change", "joined", "later"),
    [
        ({"rooms": ["a"]}, ["a"], ["a"]),
        ({"rooms": []}, [], None),
        ({"join": ["a"]}, ["a", "hall", "lobby"], ["lobby", "hall", "a"]),
        ({"leave": ["hall", "other"]}, ["lobby"], ["lobby"]),
        ({"leave": ["hall"], "join": ["hall"]}, ["hall", "lobby"], ["lobby", "hall"]),
        ({"rooms": ["a", "b"], "leave": ["a"], "join": ["c"]}, ["b", "c"], ["b", "c"]),
        ({"leave": ["hall"]}, ["hall", "lobby"], ["lobby"]),  # the token puts the session into it
        ({"status": "away"}, None, ["lobby", "hall"]),
    ],
)
def test_later_logins_have_the_rooms_of_a_granted_update(
    change: dict[str, Any], joined: list[str] | None, later: list[str] | None
) -> None:
    driven = in_rooms(["lobby", "hall"], ["hall", "lobby"])
    update(driven, joined, **change)
    assert rooms_of_next_login(driven) == later
    assert driven.machine.persistent_state.joined == (["hall", "lobby"] if joined is None else joined)


@pytest.mark.parametrize(("code", "error"), [(Code.NOT_ALLOWED, NotAllowed), (Code.TOO_LARGE, LimitReached)])
def test_a_refused_update_changes_no_rooms_and_the_connection_stays(code: Code, error: type) -> None:
    driven = in_rooms(["lobby"], ["lobby"])
    id = driven.ask(protocol.update(join=["hall"]))
    driven.receive(protocol.error(id, code, "no"))
    assert isinstance(driven.answers[id], error)
    assert rooms_of_next_login(driven) == ["lobby"]
    driven.lose()
    assert driven.machine.error is None, "the client comes back"


def test_too_many_rooms_for_a_login_are_cut_to_those_that_the_session_is_in() -> None:
    names = [f"r{number:02}" for number in range(16)]
    driven = in_rooms(names, names[1:])  # the token does not allow the first
    update(driven, [*names[1:], "s"], join=["s"])
    assert rooms_of_next_login(driven) == [*names[1:], "s"]


def test_a_renewed_token_changes_the_rooms_of_the_session_and_not_what_the_program_wants() -> None:
    driven = in_rooms(["lobby"], ["lobby"])
    update(driven, ["vip"], token="t")
    assert driven.machine.persistent_state.joined == ["vip"]
    assert rooms_of_next_login(driven) == ["lobby"]


def test_an_older_server_has_no_rooms_and_later_logins_have_them_still() -> None:
    driven = in_rooms(["lobby"], None)
    assert driven.machine.persistent_state.joined is None
    update(driven, None, join=["hall"])
    assert rooms_of_next_login(driven) == ["lobby"]


def test_rooms_that_do_not_fit_into_the_login_are_joined_after_it() -> None:
    driven = in_rooms(LONG, [])
    assert "rooms" not in driven.sent[0].payload
    assert driven.sent[0].payload["confirms"] is True
    assert own_requests(driven) == [{"join": LONG}]
    driven.receive(granted(protocol.ok(driven.sent[-1].id), LONG))
    assert driven.machine.persistent_state.joined == LONG
    driven.reconnect()
    assert own_requests(driven) == [{"join": LONG}] * 2


def test_rooms_stay_in_the_login_that_has_no_space_for_meta() -> None:
    names = [f"{number:02}" + "r" * 50 for number in range(14)]
    driven = Driven()
    meta = {"text": "m" * 240}
    driven.machine = ClientMachine(protocol.login("ann", rooms=names, meta=meta), driven.now)
    driven.log_in()
    assert driven.sent[0].payload["rooms"] == names
    assert own_requests(driven) == [{"meta": meta}]


def test_rooms_after_the_login_are_joined_in_parts_if_one_is_refused() -> None:
    driven = in_rooms(LONG, [])
    wanted, joined, answered = set(LONG[:7] + LONG[8:]), set[str](), 1
    while answered < len(driven.sent):
        packet = driven.sent[answered]
        answered += 1
        if {*packet.payload["join"]} <= wanted:
            joined |= {*packet.payload["join"]}
            driven.receive(granted(protocol.ok(packet.id), sorted(joined)))
        else:
            driven.receive(protocol.error(packet.id, Code.NOT_ALLOWED, "no"))
    assert joined == wanted
    assert answered <= 10, "few requests"


@pytest.mark.parametrize(
    ("change", "then"),
    [
        ({"rooms": ["a"]}, []),
        ({"leave": LONG[1:]}, LONG[:1]),
        ({"join": ["a"]}, LONG),
    ],
)
def test_what_the_login_left_out_does_not_overtake_an_update_of_the_program(
    change: dict[str, Any], then: list[str]
) -> None:
    driven = in_rooms(LONG, [])
    driven.receive(protocol.error(driven.sent[-1].id, Code.BUSY, "later"))
    driven.ask(protocol.update(**change))
    driven.run(1.0)  # the pause after the busy answer
    assert own_requests(driven)[2:] == ([{"join": then}] if then else [])


def test_a_refused_update_does_not_keep_rooms_from_the_server_that_the_login_left_out() -> None:
    driven = in_rooms(LONG, [])
    driven.receive(protocol.error(driven.sent[-1].id, Code.BUSY, "later"))
    id = driven.ask(protocol.update(rooms=["a"]))
    driven.run(1.0)
    driven.receive(protocol.error(id, Code.NOT_ALLOWED, "no"))
    assert own_requests(driven)[2:] == [{"join": LONG}]


def test_rooms_of_later_logins_stay_as_they_were_set_while_others_are_joined() -> None:
    driven = in_rooms(LONG, [])
    driven.machine.persistent_state.log_in_with(rooms=LONG[:2])
    driven.receive(granted(protocol.ok(driven.sent[-1].id), LONG))
    assert rooms_of_next_login(driven) == LONG[:2]
    driven.reconnect()
    assert own_requests(driven) == [{"join": LONG}], "the login has carried them"


@on_both_backends()
async def test_the_program_learns_which_rooms_it_is_in() -> None:
    script = ScriptedServer(granted(login_ok(), ["lobby"]))
    async with opening(script, rooms=["lobby"]) as client:
        assert client.joined == ("lobby",)
        script.answer = {"joined": ["hall"]}
        await client.update(rooms=["hall"])
        assert client.joined == ("hall",)


@pytest.mark.parametrize("change", [{"rooms": []}, {"join": ["a"]}, {"leave": ["a"]}])
@on_both_backends()
async def test_an_update_of_rooms_raises_on_an_older_server(change: dict[str, Any]) -> None:
    script = ScriptedServer()
    async with opening(script) as client:
        assert client.joined is None
        with pytest.raises(Unsupported, match="no rooms"):
            await client.update(status="away", **change)
        assert client._link.machine.persistent_state.login.payload["status"] == "away"


@on_both_backends()
async def test_log_in_with_changes_the_rooms_of_its_next_login() -> None:
    script = ScriptedServer(granted(login_ok(), ["lobby"]))
    async with opening(script, rooms=["lobby"]) as client:
        client.log_in_with(rooms=["hall"])
        assert client._link.machine.persistent_state.login.payload["rooms"] == ["hall"]
        client.log_in_with(rooms=[])
        assert "rooms" not in client._link.machine.persistent_state.login.payload


@pytest.mark.parametrize(
    ("rooms", "error"),
    [("lobby", TypeError), (["the lobby"], EncodeError), ([f"r{n}" for n in range(17)], EncodeError)],
)
def test_rooms_that_are_none_are_refused_at_once(rooms: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        connect("127.0.0.1", 1, uid="ann", rooms=rooms)


def test_a_script_is_in_rooms_alike() -> None:
    server = GrantingServer()
    with connect_blocking(*server.address, uid="ann", rooms=["lobby"]) as client:
        assert client.joined is None
        with pytest.raises(Unsupported, match="no rooms"):
            client.update(join=["a"], leave=["b"])
        client.log_in_with(rooms=["hall"])
    server.close()
    login, update = (dict(each.payload) for each in server.received if each.kind in (Kind.LOGIN, Kind.UPDATE))
    assert login["rooms"] == ["lobby"]
    assert update == {"join": ["a"], "leave": ["b"]}
