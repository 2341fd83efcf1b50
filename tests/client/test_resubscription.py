"""Watches outlive their connections: no user is lost, no change is repeated or out of order."""

from typing import Any

import pytest

from presence import protocol
from presence.client import (
    DeviceState,
    Ended,
    LimitReached,
    NotConnected,
    RequestTimeout,
    UserState,
    WatchEnded,
    connection,
)
from presence.client.connection import ANSWER_TIMEOUT_S, MAX_IN_FLIGHT, USERS_THAT_FIT
from presence.client.kept_state import MAX_PASSES
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import SERVER_TIME_S, Driven, token


def state(status: str, id: str | None = None, **rest: object) -> dict[str, object]:
    return {"status": status, "id": id, **rest}


def push(uid: str, status: str, id: str | None, reason: str = "login", **rest: object) -> Packet:
    return protocol.presence(uid, state(status, id, **rest), reason)


def known(driven: Driven) -> dict[str, str]:
    return {uid: each.status for uid, each in driven.machine.persistent_state.watches.states().items()}


def test_devices_are_asked_for_again_and_one_that_comes_is_a_change() -> None:
    online = Driven(watch_devices=True)
    online.log_in()
    desk = {"device": "desk", "status": "online", "since_ms": 1}
    online.ask(online.machine.persistent_state.watch(["bob"]))
    assert online.sent[-1].payload == {"uids": ["bob"], "detail": True}
    online.receive(
        protocol.ok(online.sent[-1].id, presence={"bob": {**state("online", "1-0"), "devices": []}})
    )
    online.receive(protocol.presence("bob", {**state("online", "2-0"), "devices": [desk]}, "login"))
    assert online.machine.persistent_state.watches.states()["bob"].devices == (
        DeviceState("desk", "online", 1),
    )
    assert [each.payload for each in online.reconnect()] == [{"uids": ["bob"], "detail": True}]


# Within one connection


@pytest.mark.parametrize("id", ["9-0", "8-9", "9-1"])
def test_a_change_that_is_not_newer_is_ignored(online: Driven, id: str) -> None:
    online.watch(bob=state("online", "9-1"))
    online.receive(push("bob", "offline", id, "logout"))
    assert online.changes() == []
    assert known(online) == {"bob": "online"}
    online.receive(push("bob", "away", "9-10", "away"), push("bob", "offline", "10-0", "logout"))
    assert [id for _, _, id, _ in online.changes()] == ["9-10", "10-0"], "ids are compared as numbers"


def test_a_change_without_an_id_is_in_order(online: Driven) -> None:
    online.watch(bob=state("online", "9-1"))
    hidden = protocol.presence("bob", {"status": "online", "since_ms": None, "id": None}, "updated")
    online.receive(hidden, push("bob", "away", "8-0", "away"))
    assert [status for _, status, *_ in online.changes()] == ["online", "away"]


def test_a_refused_watch_watches_no_users(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    online.receive(protocol.error(id, Code.TOO_LARGE, "too many"))
    assert isinstance(online.answers[id], LimitReached)
    online.receive(push("bob", "online", "7-0"))
    assert (online.changes(), known(online), online.reconnect()) == ([], {}, [])


def test_a_watch_without_an_answer_is_undone(online: Driven) -> None:
    online.watch(ann=state("online", "1-0"))
    id = online.ask(protocol.watch(["ann", "bob"]), timeout_s=2.0)
    online.run(2.0)
    assert isinstance(online.answers[id], RequestTimeout)
    assert of_the_client(online.sent[-1:]) == [(Kind.UNWATCH, {"uids": ["bob"]})]
    online.receive(protocol.ok(id, presence={"bob": state("online", "7-0")}), push("bob", "away", "8-0"))
    assert (online.changes(), known(online)) == ([], {"ann": "online"})


def test_a_watch_that_ends_early_does_not_end_another_of_the_same_user(online: Driven) -> None:
    first, second, third = (online.ask(protocol.watch(["bob"])) for _ in range(3))
    online.machine.abandon_request(first)
    online.receive(protocol.error(second, Code.BUSY, "later"))
    online.receive(protocol.ok(third, presence={"bob": state("online", "7-0")}))
    assert [each.kind for each in online.sent[-3:]] == [Kind.WATCH] * 3
    assert known(online) == {"bob": "online"}


def test_an_abandoned_watch_is_undone(online: Driven) -> None:
    online.machine.abandon_request(online.ask(protocol.watch(["bob"])))
    online.note([])
    assert of_the_client(online.sent[-1:]) == [(Kind.UNWATCH, {"uids": ["bob"]})]


def test_an_unwatch_takes_effect_when_it_is_sent(online: Driven) -> None:
    online.watch(ann=state("online", "1-0"), bob=state("online", "1-0"))
    online.ask(protocol.unwatch(["bob"]))
    online.receive(push("bob", "away", "7-0"), push("ann", "away", "7-0"))
    assert [uid for uid, *_ in online.changes()] == ["ann"]
    assert online.reconnect() == [protocol.watch(["ann"], id=online.sent[-1].id)]


def test_an_unwatch_cancels_a_watch_without_an_answer_yet(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    online.ask(protocol.unwatch())
    online.receive(protocol.ok(id, presence={"bob": state("online", "7-0")}))
    assert known(online) == {}


def test_watching_twice_is_watching_once(online: Driven) -> None:
    online.watch(bob=state("online", "7-0"))
    online.watch(bob=state("online", "7-0"))
    assert online.changes() == []
    assert online.machine.persistent_state.watches.newest({"bob": UserState("away", id="6-0")}) == {
        "bob": UserState("online", id="7-0")
    }


# After a reconnect


def test_users_are_watched_again_and_changes_meanwhile_are_pushed(online: Driven) -> None:
    online.watch(ann=state("online", "1-0"), bob=state("online", "2-0"))
    (again,) = online.reconnect()
    assert again == protocol.watch(["ann", "bob"], id=again.id)
    answer = {"ann": state("online", "1-0"), "bob": state("away", "9-0", meta={"status": "lunch"})}
    online.receive(protocol.ok(again.id, presence=answer))
    online.receive(push("bob", "online", "10-0", "back"))
    assert online.changes() == [("bob", "away", "9-0", "meanwhile"), ("bob", "online", "10-0", "back")]
    assert again.id not in online.answers, "it is not a request of the program"


def test_a_user_who_stayed_offline_has_not_changed(online: Driven) -> None:
    online.watch(bob=state("online", "2-0"))
    online.receive(push("bob", "offline", "9-0", "logout", since_ms=9, last_seen_ms=8))
    (again,) = online.reconnect()
    online.receive(protocol.ok(again.id, presence={"bob": state("offline", last_seen_ms=8)}))
    assert [id for _, _, id, _ in online.changes()] == ["9-0"]
    bob = online.machine.persistent_state.watches.states()["bob"]
    assert bob.since_ms == 9, "the more detailed state is kept"


def test_a_user_who_was_online_meanwhile_has_a_later_last_seen(online: Driven) -> None:
    online.watch(bob=state("offline", last_seen_ms=8))
    (again,) = online.reconnect()
    online.receive(protocol.ok(again.id, presence={"bob": state("offline", last_seen_ms=20)}))
    assert online.changes() == [("bob", "offline", None, "meanwhile")]


def test_many_users_are_watched_again_in_requests_that_fit(online: Driven) -> None:
    names = [f"{number:0>127}" for number in range(600)]
    for start in range(0, 600, 100):
        online.watch(**{name: state("offline") for name in names[start : start + 100]})
    requests = online.reconnect()
    assert len(requests) == MAX_IN_FLIGHT, "the rest follow as these are answered"
    for each in requests:
        before = len(online.sent)
        online.receive(protocol.ok(each.id, presence={uid: state("offline") for uid in each.payload["uids"]}))
        requests += online.sent[before:]
    assert [uid for each in requests for uid in each.payload["uids"]] == names
    assert all(len(protocol.encode(each)) <= protocol.FRAME_LIMIT_BYTES for each in requests)
    assert len(requests) == 6


@pytest.mark.parametrize("code", [Code.BUSY, Code.SERVER_ERROR, Code.RATE_LIMITED])
def test_a_temporary_refusal_is_retried_after_retry_after(online: Driven, code: Code) -> None:
    online.watch(bob=state("online", "2-0"))
    (again,) = online.reconnect()
    online.receive(protocol.error(again.id, code, "not now", 3.0))
    before = len(online.sent)
    online.run(3.9)
    assert len(online.sent) == before
    online.run(0.1)
    assert online.sent[-1] == protocol.watch(["bob"], id=online.sent[-1].id)
    online.receive(protocol.ok(online.sent[-1].id, presence={"bob": state("away", "3-0")}))
    assert [status for _, status, *_ in online.changes()] == ["away"]


def test_a_watch_without_an_answer_is_retried(online: Driven) -> None:
    online.watch(bob=state("online", "2-0"))
    online.reconnect()
    online.run(ANSWER_TIMEOUT_S + 1.0, answering=False)
    watches = [packet for packet in online.sent if packet.kind == Kind.WATCH]
    assert [packet.payload["uids"] for packet in watches] == [["bob"]] * 3
    assert not any(packet.kind == Kind.UNWATCH for packet in online.sent)


def test_a_user_unwatched_meanwhile_is_not_watched_again(online: Driven) -> None:
    online.watch(ann=state("online", "2-0"), bob=state("online", "2-0"))
    (again,) = online.reconnect()
    online.receive(protocol.error(again.id, Code.BUSY, "not now", 3.0))
    online.ask(protocol.unwatch(["bob"]))
    online.run(4.0)
    assert online.sent[-1].payload == {"uids": ["ann"]}


@pytest.mark.parametrize("code", [Code.UNSUPPORTED, Code.TOO_LARGE])
def test_a_final_refusal_is_pushed_and_not_retried(online: Driven, code: Code) -> None:
    online.watch(bob=state("online", "2-0"))
    (again,) = online.reconnect()
    online.receive(protocol.error(again.id, code, "no more"))
    assert online.pushes[-1] == WatchEnded(("bob",), code, code.reason, "no more")
    assert (known(online), online.reconnect()) == ({}, [])


def test_resubscription_restarts_after_another_loss(online: Driven) -> None:
    online.watch(bob=state("online", "2-0"))
    (first,) = online.reconnect()
    (second,) = online.reconnect()
    assert second == first._replace(id=second.id)
    assert not {first.id, second.id} & set(online.answers)


def test_while_offline_a_watch_is_refused_and_an_unwatch_is_done(online: Driven) -> None:
    online.watch(ann=state("online", "2-0"), bob=state("online", "2-0"))
    online.lose()
    with pytest.raises(NotConnected):
        online.ask(protocol.watch(["eve"]))
    assert online.machine.unwatch(["bob"], 1.0, online.now) is None
    with pytest.raises(protocol.EncodeError):
        online.machine.unwatch(["b b"], 1.0, online.now)
    assert known(online) == {"ann": "online"}


# watch_nowait


def test_watch_nowait_pushes_the_first_states_as_changes(online: Driven) -> None:
    online.machine.watch_nowait(["bob", "eve", "bob"], online.now)
    online.note([])
    assert online.sent[-1] == protocol.watch(["bob", "eve"], id=online.sent[-1].id)
    assert known(online) == {"bob": "unknown", "eve": "unknown"}
    answer = {"bob": state("offline", last_seen_ms=5), "eve": state("online", "7-0")}
    online.receive(protocol.ok(online.sent[-1].id, presence=answer))
    pushed = [("bob", "offline", None, "watched"), ("eve", "online", "7-0", "watched")]
    assert (online.changes(), known(online)) == (pushed, {"bob": "offline", "eve": "online"})


def test_watch_nowait_while_offline_is_sent_after_the_login() -> None:
    driven = Driven()
    driven.machine.watch_nowait(["bob"], driven.now)
    driven.log_in()
    assert driven.sent[-1] == protocol.watch(["bob"], id=driven.sent[-1].id)


def test_watch_nowait_does_not_request_watched_users_again(online: Driven) -> None:
    online.watch(bob=state("online", "2-0"))
    before = len(online.sent)
    online.machine.watch_nowait(["bob"], online.now)
    online.note([])
    assert (len(online.sent), known(online)) == (before, {"bob": "online"})


def test_watch_nowait_waits_for_retry_after(online: Driven) -> None:
    online.machine.watch_nowait(["bob"], online.now)
    online.note([])
    online.receive(protocol.error(online.sent[-1].id, Code.BUSY, "not now", 3.0))
    before = len(online.sent)
    online.machine.watch_nowait(["eve"], online.now)
    online.run(3.9)
    assert len(online.sent) == before
    online.run(0.1)
    assert [packet.payload["uids"] for packet in online.sent[before:]] == [["bob"], ["eve"]]


def test_watch_nowait_refuses_invalid_uids_and_ended_clients(online: Driven) -> None:
    with pytest.raises(protocol.EncodeError):
        online.machine.watch_nowait(["b b"], online.now)
    online.machine.close()
    with pytest.raises(Ended):
        online.machine.watch_nowait(["bob"], online.now)


# The user's own state


def logins(driven: Driven) -> list[dict[str, object]]:
    """Return what the logins carry beside what each one says, `confirms` and `batch`."""
    carried = [dict(packet.payload) for packet in driven.sent if packet.kind == Kind.LOGIN]
    always = {"confirms", "batch"}
    return [{name: value for name, value in each.items() if name not in always} for each in carried]


def test_a_granted_update_is_used_for_later_logins(online: Driven) -> None:
    online.receive(protocol.ok(online.ask(protocol.update(meta={"app": "2"}, status="away"))))
    online.reconnect()
    online.receive(protocol.ok(online.ask(protocol.update(meta={}, status="online"))))
    online.reconnect()
    login = {"uid": "ann", "device": "phone"}
    assert logins(online)[1:] == [{**login, "meta": {"app": "2"}, "status": "away"}, login]


def test_a_client_is_quiet_again_after_a_reconnect_until_it_ends_that(online: Driven) -> None:
    online.receive(protocol.ok(online.ask(protocol.update(quiet=True))))
    online.reconnect()
    online.receive(protocol.ok(online.ask(protocol.update(quiet=False))))
    online.reconnect()
    login = {"uid": "ann", "device": "phone"}
    assert logins(online)[1:] == [{**login, "quiet": True}, login]


def test_the_end_of_quiet_while_offline_is_that_of_later_logins(online: Driven) -> None:
    online.receive(protocol.ok(online.ask(protocol.update(quiet=True))))
    online.lose()
    online.machine.persistent_state.log_in_with(quiet=False)
    online.run(1.0)
    online.log_in()
    assert "quiet" not in logins(online)[-1]


@pytest.mark.parametrize(
    ("before", "update", "answer", "later"),
    [
        ("busy", {"status": "invisible", "scope": "user"}, {"scope": "user"}, {"status": "busy"}),
        ("invisible", {"status": "invisible", "scope": "user"}, {"scope": "user"}, {}),
        # An older server has set the status of the session.
        ("busy", {"status": "invisible", "scope": "user"}, {}, {"status": "invisible"}),
        ("busy", {"status": "dnd", "scope": "user"}, {"scope": "user"}, {"status": "dnd"}),
        ("busy", {"hide": ["last_seen"]}, {"hide": ["last_seen"]}, {"status": "busy"}),
    ],
)
def test_what_the_server_keeps_with_the_user_is_in_no_later_login(
    online: Driven, before: str, update: dict[str, Any], answer: dict[str, Any], later: dict[str, Any]
) -> None:
    online.receive(protocol.ok(online.ask(protocol.update(status=before))))
    online.receive(protocol.ok(online.ask(protocol.update(**update)), **answer))
    online.reconnect()
    assert logins(online)[-1] == {"uid": "ann", "device": "phone", **later}


def test_a_refused_update_is_forgotten(online: Driven) -> None:
    online.receive(protocol.error(online.ask(protocol.update(status="away")), Code.UNSUPPORTED, "no"))
    online.reconnect()
    assert logins(online)[-1] == {"uid": "ann", "device": "phone"}


def test_parameters_of_later_logins_can_be_set_while_offline(online: Driven) -> None:
    online.lose()
    online.machine.persistent_state.log_in_with(status="away")
    with pytest.raises(protocol.EncodeError):
        online.machine.persistent_state.log_in_with(status="asleep")
    online.run(1.0)
    online.log_in()
    assert logins(online)[-1] == {"uid": "ann", "device": "phone", "status": "away"}


def of_the_client(packets: list[Packet]) -> list[tuple[Kind, dict[str, object]]]:
    return [(Kind(packet.kind), dict(packet.payload)) for packet in packets]


def test_what_no_login_can_hold_follows_it_until_the_server_takes_it(online: Driven) -> None:
    token, meta, private = "t" * 760, {"about": "m" * 200}, {"push": "p" * 200}
    for update in (
        protocol.update(token=token),
        protocol.update(meta=meta),
        protocol.update(private=private),
    ):
        online.receive(protocol.ok(online.ask(update)))
    (rest,) = online.reconnect()
    assert logins(online)[-1] == {"uid": "ann", "device": "phone", "token": token, "meta": meta}
    assert of_the_client([rest]) == [(Kind.UPDATE, {"private": private})]
    online.receive(protocol.error(rest.id, Code.RATE_LIMITED, "later", 1.0))
    online.run(3.0)
    assert of_the_client(online.sent[-1:]) == [(Kind.UPDATE, {"private": private})]
    online.receive(protocol.ok(online.sent[-1].id))
    online.receive(protocol.ok(online.ask(protocol.update(private={"push": "new"}))))
    online.receive(protocol.ok(online.ask(protocol.update(meta={}))))
    assert online.reconnect() == []
    assert logins(online)[-1] == {"uid": "ann", "device": "phone", "token": token, "private": {"push": "new"}}


SOON_MS = SERVER_TIME_S * 1000 + 60_000


@pytest.mark.parametrize(
    ("lasting", "timed", "login", "rest"),
    [
        (None, "dnd", {"status": "dnd", "until_ms": SOON_MS}, None),
        ("invisible", "dnd", {"status": "invisible"}, {"status": "dnd", "until_ms": SOON_MS}),
        ("away", "busy", {"status": "away"}, {"status": "busy", "until_ms": SOON_MS}),
        ("away", "invisible", {"status": "invisible", "until_ms": SOON_MS}, None),
    ],
)
def test_the_status_that_returns_later_is_kept(
    online: Driven, lasting: str | None, timed: str, login: dict[str, object], rest: dict[str, object] | None
) -> None:
    if lasting:
        online.receive(protocol.ok(online.ask(protocol.update(status=lasting))))
    online.receive(protocol.ok(online.ask(protocol.update(status=timed, until_ms=SOON_MS))))
    sent = of_the_client(online.reconnect())
    assert logins(online)[-1] == {"uid": "ann", "device": "phone", **login}
    assert sent == ([] if rest is None else [(Kind.UPDATE, rest)])
    online.run(70.0, answering=True)
    after = of_the_client(online.reconnect())
    lasting_login = {} if lasting is None else {"status": lasting}
    assert (logins(online)[-1], after) == ({"uid": "ann", "device": "phone", **lasting_login}, [])


# Users whom the client may not see


def test_a_pass_or_a_token_makes_the_client_ask_again_for_hidden_users(online: Driven) -> None:
    online.watch(ann=state("online", "1-0"), bob={"status": "not_allowed"})
    for request in (protocol.watch([], visibility_pass="p"), protocol.update(token="t")):
        online.receive(protocol.ok(online.ask(request), presence={}))
        again = online.sent[-1]
        assert again == protocol.watch(["bob"], id=again.id)
        online.receive(protocol.ok(again.id, presence={"bob": {"status": "not_allowed"}}))
        assert online.changes() == []
    online.receive(protocol.ok(online.ask(protocol.watch([], visibility_pass="q")), presence={}))
    online.receive(protocol.ok(online.sent[-1].id, presence={"bob": state("online", "7-0")}))
    assert online.changes() == [("bob", "online", "7-0", "meanwhile")]
    online.receive(protocol.presence("bob", {"status": "not_allowed"}, "not_allowed"))
    assert online.changes()[1:] == [("bob", "not_allowed", None, "not_allowed")]


def test_passes_are_given_again_until_one_is_refused(online: Driven) -> None:
    for text in ("p", "q"):
        online.receive(protocol.ok(online.ask(protocol.watch([], visibility_pass=text)), presence={}))
    first, second = online.reconnect()
    assert [each.payload["pass"] for each in (first, second)] == ["p", "q"]
    online.receive(protocol.ok(first.id, presence={}))
    online.receive(protocol.error(second.id, Code.AUTH_FAILED, "it has expired"))
    assert [each.payload["pass"] for each in online.reconnect()] == ["p"]


def test_a_pass_that_a_busy_server_refused_is_given_again(online: Driven) -> None:
    online.receive(protocol.ok(online.ask(protocol.watch([], visibility_pass="p")), presence={}))
    for code in (Code.BUSY, Code.RATE_LIMITED):
        (again,) = online.reconnect()
        online.receive(protocol.error(again.id, code, "later", 1.0))
        online.run(3.0)
        assert online.sent[-1].payload["pass"] == "p"


def test_only_passes_that_may_still_be_of_use_are_given_again(online: Driven) -> None:
    old, *new = (token(SERVER_TIME_S + life) for life in (5, *range(600, 600 + MAX_PASSES + 2)))
    for text in (*new, old):
        online.receive(protocol.ok(online.ask(protocol.watch([], visibility_pass=text)), presence={}))
    online.lose()
    online.run(1.0)
    online.establish()
    online.receive(protocol.ok(1, time_ms=(SERVER_TIME_S + 10) * 1000))
    given = []
    while online.sent[-1].kind == Kind.WATCH:
        pending = [packet for packet in online.sent if "pass" in packet.payload][-2:]
        given = [packet.payload["pass"] for packet in online.sent if "pass" in packet.payload]
        before = len(online.sent)
        online.receive(*(protocol.ok(packet.id, presence={}) for packet in pending))
        if len(online.sent) == before:
            break
    assert given[len(new) + 1 :] == new[-MAX_PASSES + 1 :]


# Answers that are too large


def test_watches_whose_devices_do_not_fit_into_one_answer_are_asked_for_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "USERS_THAT_FIT", 2)
    online = Driven(watch_devices=True)
    online.log_in()
    users = {f"u{n}": state("online", "1-0") for n in range(5)}
    online.receive(protocol.ok(online.ask(online.machine.persistent_state.watch(users)), presence=users))
    pending = online.reconnect()
    while pending:
        packet = pending.pop(0)
        before = len(online.sent)
        if len(uids := packet.payload["uids"]) > 2:
            online.receive(protocol.error(packet.id, Code.TOO_LARGE, "ask for fewer users"))
        else:
            online.receive(protocol.ok(packet.id, presence={uid: state("online", "1-0") for uid in uids}))
        pending += online.sent[before:]
    assert known(online) == dict.fromkeys(users, "online")
    assert not [push for push in online.pushes if isinstance(push, WatchEnded)]


def test_watches_beyond_the_limit_of_the_server_end_after_few_requests() -> None:
    online = Driven(watch_devices=True)
    online.log_in()
    online.machine.watch_nowait([f"u{n}" for n in range(500)], online.now)
    online.note([])
    refused = 0
    while pending := [packet for packet in online.sent if packet.kind == Kind.WATCH][refused:]:
        for packet in pending:
            refused += 1
            online.receive(protocol.error(packet.id, Code.TOO_LARGE, "a connection may watch 1000 users"))
    assert refused <= 2 * 500 / (USERS_THAT_FIT / 2)
    assert sum(len(push.uids) for push in online.pushes if isinstance(push, WatchEnded)) == 500
    assert known(online) == {}


def test_a_refused_request_ends_the_watches_that_it_named_and_no_other(online: Driven) -> None:
    for name in ("x", "y"):  # which are in flight
        online.machine.watch_nowait([name], online.now)
    online.machine.watch_nowait(["a", "b"], online.now)
    online.note([])
    online.ask(protocol.unwatch(["a"]))
    first = next(packet for packet in online.sent if packet.kind == Kind.WATCH)
    online.receive(protocol.ok(first.id, presence={"x": state("online", "1-0")}))
    asked = online.sent[-1]
    assert asked.payload["uids"] == ["b"]
    online.watch(a=state("online", "2-0"))
    online.receive(protocol.error(asked.id, Code.TOO_LARGE, "a connection may watch 2 users"))
    assert [push.uids for push in online.pushes if isinstance(push, WatchEnded)] == [("b",)]
    assert known(online)["a"] == "online"


def test_a_refused_request_of_the_client_leaves_a_pending_one_of_the_program(online: Driven) -> None:
    online.machine.watch_nowait(["bob"], online.now)
    online.note([])
    refused = online.sent[-1]
    asked = online.ask(protocol.watch(["bob"]))
    online.receive(protocol.error(refused.id, Code.TOO_LARGE, "too many"))
    online.receive(protocol.ok(asked, presence={"bob": state("online", "1-0")}))
    assert known(online) == {"bob": "online"}


def test_a_watch_that_another_request_of_the_client_still_asks_for_has_not_ended(online: Driven) -> None:
    online.machine.watch_nowait(["ann", "bob"], online.now)
    online.note([])
    first = online.sent[-1]
    online.ask(protocol.unwatch(["bob"]))
    online.machine.watch_nowait(["bob"], online.now)
    online.note([])
    second = online.sent[-1]
    online.receive(protocol.error(first.id, Code.TOO_LARGE, "too many"))
    assert [push.uids for push in online.pushes if isinstance(push, WatchEnded)] == [("ann",)]
    online.receive(protocol.ok(second.id, presence={"bob": state("online", "1-0")}))
    assert known(online) == {"bob": "online"}


def test_what_the_login_left_out_does_not_overtake_an_update_of_the_program(online: Driven) -> None:
    for shown in ({"token": "t" * 760}, {"meta": {"m": "m" * 200}}, {"private": {"p": "p" * 200}}):
        online.receive(protocol.ok(online.ask(protocol.update(**shown))))
    (rest,) = online.reconnect()
    online.receive(protocol.error(rest.id, Code.BUSY, "later", 1.0))
    online.ask(protocol.update(private={"push": "new"}))
    online.run(5.0, answering=True)
    assert [packet.payload for packet in online.sent if packet.kind == Kind.UPDATE][-1:] == [
        {"private": {"push": "new"}}
    ]


@pytest.mark.parametrize("code", [Code.BUSY, Code.UNSUPPORTED])
def test_a_refused_update_does_not_keep_from_the_server_what_the_login_left_out(
    online: Driven, code: Code
) -> None:
    for shown in ({"token": "t" * 760}, {"meta": {"m": "m" * 200}}, {"private": {"p": "p" * 200}}):
        online.receive(protocol.ok(online.ask(protocol.update(**shown))))
    (rest,) = online.reconnect()
    online.receive(protocol.error(rest.id, Code.BUSY, "later", 1.0))
    refused = online.ask(protocol.update(private={"push": "new"}))
    online.receive(protocol.error(refused, code, "no"))
    online.run(5.0, answering=True)
    assert online.sent[-1].payload["private"] == {"p": "p" * 200}


# Pauses


def test_the_pause_after_a_busy_server_starts_again_after_a_success(online: Driven) -> None:
    pauses = []
    for number in range(8):
        online.machine.watch_nowait([f"u{number}"], online.now)
        online.note([])
        online.receive(protocol.error(online.sent[-1].id, Code.BUSY, "not now", 0.5))
        before, began = len(online.sent), online.now
        while len(watches := [each for each in online.sent[before:] if each.kind == Kind.WATCH]) == 0:
            online.run(0.1, answering=True)
        pauses.append(online.now - began)
        online.receive(protocol.ok(watches[0].id, presence={f"u{number}": state("offline")}))
        online.run(3600.0, answering=True)
    assert max(pauses) < 2.0


# Many passes


class Passing:
    """A server that hides users until the client has given the pass for them; it answers in order."""

    def __init__(self, driven: Driven, passes: int, hidden: int) -> None:
        self.driven = driven
        self.owner = {f"h{number}": f"p{number % passes}" for number in range(hidden)}
        self.given: set[str] = set()
        self.answered = len(driven.sent)

    def answer(self, *, busy: frozenset[str] = frozenset()) -> list[Packet]:
        """Answer all watches, also those that follow from the answers; return them."""
        watches = []
        while self.answered < len(self.driven.sent):
            packet = self.driven.sent[self.answered]
            self.answered += 1
            if packet.kind == Kind.LOGIN:
                self.given.clear()
            elif packet.kind == Kind.WATCH:
                watches.append(packet)
                self.driven.receive(self._answer_to(packet, busy))
        return watches

    def _answer_to(self, packet: Packet, busy: frozenset[str]) -> Packet:
        text = packet.payload.get("pass")
        if text in busy:
            return protocol.error(packet.id, Code.BUSY, "later", 3.0)
        self.given |= {text} if text else set()
        shown = {
            uid: state("online", "1-0") if self.owner.get(uid) in self.given else {"status": "not_allowed"}
            for uid in packet.payload["uids"]
        }
        return protocol.ok(packet.id, presence=shown)


def requests_and_users(watches: list[Packet]) -> tuple[int, int]:
    return len(watches), sum(len(packet.payload["uids"]) for packet in watches)


def passing(passes: int, hidden: int) -> Passing:
    """A client that watches hidden users, and has given the server passes for them, one after the other."""
    driven = Driven()
    driven.log_in()
    server = Passing(driven, passes, hidden)
    uids = list(server.owner)
    for start in range(0, hidden, 500):
        driven.machine.watch_nowait(uids[start : start + 500], driven.now)
        driven.note([])
    server.answer()
    for number in range(passes):
        driven.ask(protocol.watch([], visibility_pass=f"p{number}"))
        server.answer()
    return server


def test_a_reconnect_gives_the_passes_and_asks_for_each_user_once() -> None:
    server = passing(12, 900)
    server.owner.clear()  # the passes show these users no longer
    server.driven.reconnect()
    assert requests_and_users(server.answer()) == (12 + 2, 900)
    server.driven.reconnect()
    assert requests_and_users(server.answer()) == (12 + 2, 900)


def test_passes_given_together_make_the_client_ask_for_hidden_users_once() -> None:
    driven = Driven()
    driven.log_in()
    server = Passing(driven, 12, 400)
    driven.machine.watch_nowait(list(server.owner), driven.now)
    driven.note([])
    server.answer()
    for number in range(12):
        driven.ask(protocol.watch([], visibility_pass=f"p{number}"))
    assert requests_and_users(server.answer()) == (12 + 1, 400)
    assert set(known(driven).values()) == {"online"}


@pytest.mark.parametrize("ends", ["refused", "without an answer"])
def test_hidden_users_are_asked_for_although_the_last_pass_fails(ends: str) -> None:
    driven = Driven()
    driven.log_in()
    driven.watch(bob={"status": "not_allowed"})
    first, last = (driven.ask(protocol.watch([], visibility_pass=text), 5.0) for text in "pq")
    driven.receive(protocol.ok(first, presence={}))
    before = len(driven.sent)
    if ends == "refused":
        driven.receive(protocol.error(last, Code.AUTH_FAILED, "no"))
    else:
        driven.run(5.0, answering=True)
    asked = [packet.payload["uids"] for packet in driven.sent[before:] if packet.kind == Kind.WATCH]
    assert asked == [["bob"]]


@pytest.mark.parametrize("soon", [True, False], ids=["watch_nowait", "watch"])
def test_a_watch_that_was_sent_before_a_pass_and_is_answered_after_it_is_asked_for_again(
    online: Driven, soon: bool
) -> None:
    if soon:
        online.machine.watch_nowait(["bob"], online.now)
        online.note([])
    else:
        online.ask(protocol.watch(["bob"]))
    watch = online.sent[-1]
    given = online.ask(protocol.watch([], visibility_pass="p"))
    online.receive(protocol.ok(given, presence={}))
    online.receive(protocol.ok(watch.id, presence={"bob": {"status": "not_allowed"}}))
    again = online.sent[-1]
    assert (again.payload, again.id != watch.id) == ({"uids": ["bob"]}, True)
    online.receive(protocol.ok(again.id, presence={"bob": state("online", "1-0")}))
    assert known(online) == {"bob": "online"}
    assert online.sent[-1] == again


def test_a_pass_that_is_always_refused_for_now_keeps_no_user_from_being_watched() -> None:
    server = passing(3, 300)
    server.driven.reconnect()
    watches = []
    for _ in range(20):
        watches += server.answer(busy=frozenset({"p2"}))
        server.driven.run(1.0, answering=True)
    shown = [uid for uid, status in known(server.driven).items() if status == "online"]
    assert len(shown) == 200
    assert requests_and_users([each for each in watches if each.payload["uids"]]) == (1, 300)
