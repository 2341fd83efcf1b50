"""The roster: whom the backend lists is watched, as long as it does, on each connection."""

import pytest

from presence import protocol
from presence.client import Ended, LimitReached, RequestTimeout, Unsupported, WatchEnded
from presence.client.connection import ANSWER_TIMEOUT_S
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import Driven

ROSTER = {"uids": [], "roster": True}


def state(status: str, id: str | None = None) -> dict[str, object]:
    return {"status": status, "id": id}


def answer(id: int | None, **states: dict[str, object]) -> Packet:
    return protocol.ok(id, presence=states, roster=len(states))


def change(uid: str, status: str, id: str | None, reason: str = "login") -> Packet:
    return protocol.presence(uid, state(status, id), reason)


def removed(uid: str) -> Packet:
    return protocol.presence(uid, {"status": "removed"}, "removed")


def ask(driven: Driven, timeout_s: float = 10.0) -> int:
    return driven.ask(driven.machine.persistent_state.watch([], roster=True), timeout_s)


def known(driven: Driven) -> dict[str, str]:
    return {uid: each.status for uid, each in driven.machine.persistent_state.watches.states().items()}


def requests(packets: list[Packet]) -> list[dict[str, object]]:
    return [dict(each.payload) for each in packets if each.kind in (Kind.WATCH, Kind.UNWATCH)]


@pytest.fixture
def online() -> Driven:
    """A client that follows its roster, in which bob is, and whose program has named eve."""
    driven = Driven()
    driven.log_in()
    driven.watch(eve=state("online", "1-0"))
    driven.receive(answer(ask(driven), bob=state("online", "1-0")))
    return driven


# On one connection


def test_the_answer_is_returned_and_no_change(online: Driven) -> None:
    assert online.changes() == []
    assert known(online) == {"eve": "online", "bob": "online"}


def test_an_added_user_is_a_change_and_has_some_then(online: Driven) -> None:
    online.receive(change("kim", "away", "2-0", "watched"), change("kim", "online", "3-0", "back"))
    assert online.changes() == [("kim", "away", "2-0", "watched"), ("kim", "online", "3-0", "back")]
    assert known(online)["kim"] == "online"


def test_an_added_user_who_may_not_be_seen_is_a_change(online: Driven) -> None:
    online.receive(protocol.presence("kim", {"status": "not_allowed"}, "not_allowed"))
    assert online.changes() == [("kim", "not_allowed", None, "not_allowed")]
    assert known(online)["kim"] == "not_allowed"


def test_a_removed_user_is_a_last_change(online: Driven) -> None:
    online.receive(removed("bob"), removed("bob"), change("bob", "away", "9-0"))
    assert online.changes() == [("bob", "removed", None, "removed")]
    assert known(online) == {"eve": "online"}


def test_a_user_whom_the_program_has_named_stays(online: Driven) -> None:
    online.watch(bob=state("online", "1-0"))
    online.receive(removed("bob"), removed("eve"), change("bob", "away", "9-0"))
    assert online.changes() == [("bob", "away", "9-0", "login")]


def test_a_user_whom_the_program_names_later_is_named_to_the_server_too(online: Driven) -> None:
    online.machine.watch_nowait(["bob", "eve"], online.now)
    online.note([])
    assert requests(online.sent)[-1] == {"uids": ["bob"]}
    online.receive(removed("bob"))
    assert online.changes() == []
    assert known(online) == {"eve": "online", "bob": "online"}


def test_without_a_roster_nobody_is_added() -> None:
    driven = Driven()
    driven.log_in()
    driven.receive(change("kim", "away", "2-0", "watched"))
    assert (driven.changes(), known(driven)) == ([], {})


@pytest.mark.parametrize("packet", [protocol.unwatch(), protocol.unwatch(["bob"])])
def test_an_unwatch_takes_users_out_for_this_connection(online: Driven, packet: Packet) -> None:
    id = online.ask(packet)
    online.receive(change("bob", "away", "2-0", "watched"), change("bob", "away", "3-0"))
    assert "bob" not in known(online), "the server has not read the unwatch yet"
    online.receive(protocol.ok(id), change("bob", "away", "4-0"))
    assert online.changes() == []
    online.receive(change("bob", "away", "5-0", "watched"))
    assert ("bob" in known(online)) is ("uids" in packet.payload), "the rest of the roster is still followed"


def test_who_is_unwatched_before_the_answer_is_not_in_it(online: Driven) -> None:
    id = ask(online)
    online.ask(protocol.unwatch(["bob"]))
    online.receive(answer(id, bob=state("online", "1-0"), kim=state("away", "2-0")))
    assert known(online) == {"eve": "online", "kim": "away"}


def test_an_unwatch_of_all_ends_a_request_without_an_answer(online: Driven) -> None:
    id = ask(online)
    online.ask(protocol.unwatch())
    online.receive(answer(id, bob=state("online", "1-0")))
    assert known(online) == {}
    assert online.reconnect() == []


@pytest.mark.parametrize("abandons", [True, False])
def test_a_roster_without_an_answer_is_undone(abandons: bool) -> None:
    driven = Driven()
    driven.log_in()
    id = ask(driven, timeout_s=2.0)
    driven.note(driven.machine.abandon_request(id) if abandons else [])
    driven.run(2.0)
    assert abandons or isinstance(driven.answers[id], RequestTimeout)
    assert requests(driven.sent) == [ROSTER, ROSTER]
    assert driven.sent[-1].kind == Kind.UNWATCH
    driven.receive(answer(id, bob=state("online", "1-0")), change("kim", "away", "2-0", "watched"))
    assert (known(driven), driven.reconnect()) == ({}, [])


def test_a_roster_that_is_followed_outlives_another_request_for_it(online: Driven) -> None:
    online.machine.abandon_request(ask(online))
    online.receive(protocol.error(ask(online), Code.BUSY, "later"))
    assert [each.kind for each in online.sent[-2:]] == [Kind.WATCH, Kind.WATCH]
    online.receive(change("bob", "away", "2-0"))
    assert known(online) == {"eve": "online", "bob": "away"}


def test_a_refused_roster_is_not_followed() -> None:
    driven = Driven()
    driven.log_in()
    id = ask(driven)
    driven.receive(protocol.error(id, Code.TOO_LARGE, "too many"), change("kim", "away", "2-0", "watched"))
    assert isinstance(driven.answers[id], LimitReached)
    assert (known(driven), driven.reconnect()) == ({}, [])


# The program watches it no longer


def unwatch(driven: Driven) -> int | None:
    id = driven.machine.unwatch_roster(10.0, driven.now)
    driven.note([])
    return id


def test_an_unwatch_of_the_roster_ends_it_and_leaves_the_users_whom_the_program_has_named(
    online: Driven,
) -> None:
    online.watch(zoe=state("online", "1-0"))
    id = unwatch(online)
    assert requests(online.sent)[-1] == ROSTER
    assert online.sent[-1].kind == Kind.UNWATCH
    online.receive(change("bob", "away", "2-0"), change("kim", "away", "2-0", "watched"), protocol.ok(id))
    assert (online.answers[id or 0], online.changes()) == ({}, [])
    assert known(online) == {"eve": "online", "zoe": "online"}
    assert requests(online.reconnect()) == [{"uids": ["eve", "zoe"]}]


def test_a_listed_user_whom_a_call_names_meanwhile_is_watched_by_its_answer(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    unwatch(online)
    assert "bob" not in known(online)
    online.receive(protocol.ok(id, presence={"bob": state("away", "2-0")}), change("bob", "online", "3-0"))
    assert online.changes() == [("bob", "online", "3-0", "login")]
    assert requests(online.reconnect()) == [{"uids": ["eve", "bob"]}]


def test_an_unwatch_of_the_roster_ends_requests_without_an_answer(online: Driven) -> None:
    id = ask(online)
    unwatch(online)
    online.receive(answer(id, bob=state("online", "1-0"), kim=state("away", "2-0")))
    assert (online.changes(), known(online)) == ([], {"eve": "online"})
    assert requests(online.reconnect()) == [{"uids": ["eve"]}]


def test_the_roster_can_be_watched_again_immediately(online: Driven) -> None:
    unwatch(online)
    id = ask(online)
    online.receive(answer(id, bob=state("away", "2-0")))
    assert known(online) == {"eve": "online", "bob": "away"}
    assert requests(online.reconnect()) == [ROSTER, {"uids": ["eve"]}]


def test_the_roster_can_be_unwatched_without_a_connection(online: Driven) -> None:
    online.lose()
    assert unwatch(online) is None
    online.run(online.machine.deadline - online.now)
    before = len(online.sent)
    online.log_in()
    assert requests(online.sent[before:]) == [{"uids": ["eve"]}]
    online.machine.close()
    with pytest.raises(Ended):
        unwatch(online)


@pytest.mark.parametrize("code", [Code.BUSY, Code.TOO_LARGE])
def test_a_refusal_of_a_roster_that_the_program_has_unwatched_is_not_reported(code: Code) -> None:
    driven = Driven()
    driven.machine.watch_roster_nowait(driven.now)
    driven.log_in()
    id = driven.sent[-1].id
    unwatch(driven)
    driven.receive(protocol.error(id, code, "no"))
    driven.run(70.0, answering=True)
    assert [each for each in driven.pushes if isinstance(each, WatchEnded)] == []
    assert [each.kind for each in driven.sent if each.kind in (Kind.WATCH, Kind.UNWATCH)] == [
        Kind.WATCH,
        Kind.UNWATCH,
    ]


# Without waiting


def test_a_roster_watched_without_waiting_arrives_as_changes() -> None:
    driven = Driven()
    driven.machine.watch_roster_nowait(driven.now)
    driven.machine.watch_roster_nowait(driven.now)
    driven.log_in()
    assert requests(driven.sent) == [ROSTER]
    driven.receive(answer(driven.sent[-1].id, bob=state("online", "1-0"), kim=state("offline")))
    assert driven.changes() == [("bob", "online", "1-0", "watched"), ("kim", "offline", None, "watched")]


def test_a_roster_is_asked_for_again_until_the_server_answers() -> None:
    driven = Driven()
    driven.log_in()
    driven.machine.watch_roster_nowait(driven.now)
    driven.note([])
    driven.receive(protocol.error(driven.sent[-1].id, Code.BUSY, "later", 5.0))
    driven.run(6.0)
    assert requests(driven.sent) == [ROSTER, ROSTER]
    driven.run(ANSWER_TIMEOUT_S + 2.0, answering=True)
    assert requests(driven.sent) == [ROSTER, ROSTER, ROSTER]


def test_an_ended_client_watches_no_roster(online: Driven) -> None:
    online.machine.close()
    with pytest.raises(Ended):
        online.machine.watch_roster_nowait(online.now)


# On the next connection


def test_the_roster_is_asked_for_again_and_its_users_are_not_named(online: Driven) -> None:
    assert requests(online.reconnect()) == [ROSTER, {"uids": ["eve"]}]


def test_the_answer_after_a_login_is_the_roster(online: Driven) -> None:
    roster, eve = online.reconnect()
    online.receive(
        protocol.ok(eve.id, presence={"eve": state("online", "1-0")}),
        answer(roster.id, kim=state("away", "2-0"), eve=state("away", "3-0")),
    )
    assert online.changes() == [
        ("bob", "removed", None, "removed"),
        ("kim", "away", "2-0", "watched"),
        ("eve", "away", "3-0", "meanwhile"),
    ]
    assert known(online) == {"eve": "away", "kim": "away"}


def test_a_user_whom_the_program_has_named_stays_although_the_roster_has_lost_them(online: Driven) -> None:
    online.watch(bob=state("online", "1-0"))
    roster, named = online.reconnect()
    assert named.payload == {"uids": ["eve", "bob"]}
    online.receive(answer(roster.id))
    assert online.changes() == []
    assert known(online) == {"eve": "online", "bob": "online"}


def test_hidden_users_of_the_roster_are_asked_for_by_the_roster(online: Driven) -> None:
    online.watch(zoe=state("not_allowed"))
    online.receive(protocol.presence("bob", {"status": "not_allowed"}, "not_allowed"))
    before = len(online.sent)
    online.receive(protocol.ok(online.ask(protocol.watch([], visibility_pass="p")), presence={}))
    assert requests(online.sent[before + 1 :]) == [{"uids": ["zoe"]}, ROSTER]


def test_a_roster_that_is_refused_for_good_ends_its_watches(online: Driven) -> None:
    roster, _ = online.reconnect()
    online.receive(protocol.error(roster.id, Code.TOO_LARGE, "too many"))
    assert WatchEnded(("bob",), 315, "too_large", "too many") in online.pushes
    assert known(online) == {"eve": "online"}
    assert requests(online.reconnect()) == [{"uids": ["eve"]}]


# An older server, which ignores `roster`


def test_an_older_server_has_no_roster() -> None:
    driven = Driven()
    driven.log_in()
    id = ask(driven)
    driven.receive(protocol.ok(id, presence={}))
    assert isinstance(driven.answers[id], Unsupported)
    assert driven.reconnect() == []


def test_an_older_server_ends_a_roster_that_no_call_waits_for() -> None:
    driven = Driven()
    driven.machine.watch_roster_nowait(driven.now)
    driven.log_in()
    driven.receive(protocol.ok(driven.sent[-1].id, presence={}))
    assert [(each.uids, each.code) for each in driven.pushes if isinstance(each, WatchEnded)] == [((), 313)]
    assert driven.reconnect() == []


def test_an_older_server_is_asked_for_the_users_who_were_listed_last(online: Driven) -> None:
    roster, eve = online.reconnect()
    online.receive(protocol.ok(roster.id, presence={}), protocol.ok(eve.id, presence={}))
    assert requests(online.sent)[-1] == {"uids": ["bob"]}
    online.receive(protocol.ok(online.sent[-1].id, presence={"bob": state("away", "2-0")}))
    assert ("bob", "away", "2-0", "meanwhile") in online.changes()
    assert requests(online.reconnect()) == [ROSTER, {"uids": ["eve"]}], "the next server may have rosters"


def test_users_whom_an_older_server_is_asked_for_are_not_watched_once_the_roster_is_not(
    online: Driven,
) -> None:
    roster, eve = online.reconnect()
    online.receive(protocol.ok(roster.id, presence={}), protocol.ok(eve.id, presence={}))
    asked = online.sent[-1]
    unwatch(online)
    online.receive(
        protocol.ok(asked.id, presence={"bob": state("away", "2-0")}), change("bob", "online", "3-0")
    )
    assert known(online).keys() == {"eve"}
    assert requests(online.reconnect()) == [{"uids": ["eve"]}]
