"""How a client logs in, loses its connection, returns and ends; the test controls the time."""

import math
import random
import statistics

import pytest

from presence import protocol
from presence.client import (
    Banned,
    Connected,
    Delivered,
    Disconnected,
    Ended,
    Goodbye,
    Kicked,
    LoginRefused,
    NotConnected,
    PresenceChanged,
    Replaced,
    RequestTimeout,
    SessionLimit,
    State,
    Unreachable,
    UserState,
)
from presence.client.reconnect import Backoff
from presence.client.state_machine import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import Driven, login_ok, most

RETURN = [code for code in Code if code >= 100 and code.reconnect]
NO_RETURN = [code for code in Code if code >= 100 and not code.reconnect]
ENDED = {
    Code.REPLACED: Replaced,
    Code.KICKED: Kicked,
    Code.SESSION_LIMIT: SessionLimit,
    Code.BANNED: Banned,
}


# Login


def test_the_first_packet_is_the_login_and_its_answer_is_pushed(online: Driven) -> None:
    assert online.sent == [protocol.login("ann", id=1, device="phone", confirms=True, batch=True)]
    assert online.pushes == [Connected("s-1", 30, 12, 1_700_000_000_000, again=False)]


def test_without_an_interval_from_the_server_keepalives_use_a_share_of_the_idle_timeout() -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.ok(1, idle_timeout=10))
    assert isinstance(driven.pushes[0], Connected)
    assert driven.pushes[0].keepalive == 4.0


@pytest.mark.parametrize(
    ("establishes", "seconds", "reason"),
    [(False, CONNECT_TIMEOUT_S, "unreachable"), (True, LOGIN_TIMEOUT_S, "login_timeout")],
)
def test_a_step_that_takes_too_long_is_a_failed_attempt(
    establishes: bool, seconds: float, reason: str
) -> None:
    driven = Driven()
    if establishes:
        driven.establish()
    driven.run(seconds - 0.01)
    assert driven.pushes == []
    driven.run(0.01)
    (lost,) = driven.pushes
    assert isinstance(lost, Disconnected)
    assert (lost.reason, lost.retry_in, driven.machine.state) == (reason, 1.0, State.WAITING)


@pytest.mark.parametrize(
    ("id", "code", "reason"),
    [*((1, code, code.reason) for code in RETURN), (None, Code.BUSY, "busy"), (1, 999, "new")],
)
def test_a_retryable_refusal_is_retried_after_retry_after(id: int | None, code: int, reason: str) -> None:
    driven = Driven()
    driven.establish()
    payload = {"code": int(code), "reason": reason, "message": "not now", "retry_after": 7.0}
    driven.receive(Packet(Kind.ERROR, id, payload))
    assert driven.pushes == [Disconnected(reason, "not now", 8.0, code)]
    waited_in = []
    for seconds in (7.99, 0.01):
        driven.run(seconds)
        waited_in.append(driven.machine.state)
    assert waited_in == [State.WAITING, State.CONNECTING]


@pytest.mark.parametrize("code", NO_RETURN)
def test_a_final_refusal_ends_the_client(code: Code) -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.error(1, code, "no"))
    assert isinstance(driven.machine.error, LoginRefused)
    assert (driven.machine.error.code, driven.machine.error.message) == (code, "no")
    assert driven.machine.deadline == math.inf


@pytest.mark.parametrize("code", [Code.BANNED, Code.SESSION_LIMIT])
def test_a_client_waits_for_the_end_of_a_ban_or_a_session_if_it_is_told(code: Code) -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.error(1, code, "no", 600))
    assert driven.pushes[-1] == Disconnected(code.reason, "no", 601.0, code)
    assert driven.machine.state is State.WAITING


@pytest.mark.parametrize("fails", ["unreachable", "closed", "refused"])
def test_the_first_attempt_of_a_client_that_is_not_persistent_is_decisive(fails: str) -> None:
    driven = Driven(persistent=False)
    if fails == "unreachable":
        driven.lose()
    else:
        driven.establish()
        if fails == "closed":
            driven.lose()
        else:
            driven.receive(protocol.error(1, Code.BUSY, "full", 3.0))
    error = driven.machine.error
    assert driven.machine.state is State.ENDED
    assert isinstance(error, LoginRefused if fails == "refused" else Unreachable)
    assert getattr(error, "retry_after", None) == (3.0 if fails == "refused" else None)


def test_later_losses_are_retried() -> None:
    driven = Driven(persistent=False)
    driven.log_in()
    driven.lose()
    driven.run(1.0)
    driven.lose()
    assert driven.machine.state is State.WAITING


# The end of a connection


def test_a_client_reconnects_after_a_broken_connection(online: Driven) -> None:
    online.lose()
    online.run(1.0)
    assert online.machine.state is State.CONNECTING
    online.log_in()
    assert online.pushes[1:] == [
        Disconnected("closed", "broken", 1.0),
        Connected("s-1", 30, 12, 1_700_000_000_000, again=True),
    ]


@pytest.mark.parametrize("code", [*RETURN, *NO_RETURN])
@pytest.mark.parametrize("reconnect", [True, False])
def test_the_reconnect_flag_of_a_goodbye_decides(online: Driven, code: Code, reconnect: bool) -> None:
    payload = {"code": int(code), "reason": code.reason, "reconnect": reconnect, "retry_after": 2.0}
    online.receive(Packet(Kind.GOODBYE, None, payload))
    assert Goodbye(code, code.reason, reconnect, 2.0, "") in online.pushes
    if reconnect:
        assert online.pushes[-1] == Disconnected(code.reason, "", 3.0, code)
    else:
        assert type(online.machine.error) is ENDED.get(code, Ended)
        assert online.machine.deadline == math.inf


@pytest.mark.parametrize(
    ("kind", "code", "ends"),
    [
        *((None, code, True) for code in (Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN)),
        (Kind.MESSAGE, Code.TOO_LARGE, True),
        *((Kind.MESSAGE, code, False) for code in (Code.UNSUPPORTED, Code.RECIPIENT_OFFLINE)),
        (Kind.WATCH, Code.TOO_LARGE, False),
    ],
)
def test_after_some_errors_a_server_closes_for_good(
    online: Driven, kind: Kind | None, code: Code, ends: bool
) -> None:
    request = protocol.watch(["bob"]) if kind == Kind.WATCH else protocol.message("bob", "hi")
    online.receive(protocol.error(online.ask(request) if kind else None, code, "no"))
    online.lose()
    assert online.machine.state is (State.ENDED if ends else State.WAITING)
    assert getattr(online.machine.error, "code", None) == (code if ends else None)


def test_invalid_bytes_end_the_connection(online: Driven) -> None:
    online.note(online.machine.received(b"\0\0\0\0", online.now))
    assert isinstance(online.pushes[-1], Disconnected)
    assert online.pushes[-1].reason == "bad_server"


def test_packets_after_a_goodbye_are_dropped(online: Driven) -> None:
    online.receive(protocol.goodbye(Code.REPLACED), protocol.deliver("bob", "late", 1))
    assert not any(isinstance(push, Delivered) for push in online.pushes)


# Times of reconnects


def test_the_limit_of_the_delay_doubles_up_to_a_minute_until_a_login_lasted_ten_seconds() -> None:
    backoff = Backoff()
    assert [backoff.next_s(most) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [backoff.next_s(most, online_s) for online_s in (9.9, 10.0, 0.0)] == [60, 1, 2]


def test_the_delay_is_uniform_and_added_to_retry_after() -> None:
    chance = random.Random(1).random
    waits = [Backoff().next_s(chance, retry_after_s=7.0) for _ in range(2000)]
    assert 7 <= min(waits) < 7.01
    assert 7.99 < max(waits) <= 8
    assert statistics.fmean(waits) == pytest.approx(7.5, abs=0.05)


# Pushes


def test_messages_and_presence_are_returned_in_order(online: Driven) -> None:
    online.watch(bob={"status": "offline"})
    online.receive(
        protocol.deliver("bob", {"text": "hi"}, 5),
        protocol.presence("bob", {"status": "away", "since_ms": 4, "id": "4-0"}, "away"),
        Packet(99, None, {"new": True}),
    )
    assert online.pushes[1:] == [
        Delivered("bob", {"text": "hi"}, 5),
        PresenceChanged("bob", UserState("away", 4, None, "4-0"), "away"),
    ]


# The client's own end


def test_a_client_closed_while_it_connected_stays_closed() -> None:
    driven = Driven()
    driven.machine.close()
    driven.establish()
    assert (driven.machine.state, driven.sent) == (State.ENDED, [])


def test_a_logout_ends_with_its_answer(online: Driven) -> None:
    id = online.machine.log_out("background", online.now)
    online.note([])
    assert online.sent[-1] == protocol.logout("background", id=id)
    online.receive(protocol.ok(id))
    assert online.answers == {id: {}}
    assert (online.machine.state, online.machine.error) == (State.ENDED, None)


def test_a_logout_without_an_answer_ends_after_a_timeout(online: Driven) -> None:
    id = online.machine.log_out(None, online.now)
    online.run(LOGOUT_TIMEOUT_S)
    assert isinstance(online.answers[id], RequestTimeout)
    assert (online.machine.state, online.machine.error) == (State.ENDED, None)


def test_a_logout_while_offline_ends_and_reports_that_it_was_not_sent(online: Driven) -> None:
    online.lose()
    with pytest.raises(NotConnected):
        online.machine.log_out(None, online.now)
    with pytest.raises(Ended, match="logged out or closed"):
        online.ask(protocol.query(["bob"]))


@pytest.mark.parametrize("state", list(State))
def test_close_ends_the_client_in_every_state(state: State) -> None:
    driven = Driven(fetches=state is State.FETCHING_TOKEN)
    if state not in (State.FETCHING_TOKEN, State.CONNECTING):
        driven.establish()
    if state in (State.ONLINE, State.LOGGING_OUT):
        driven.receive(login_ok())
    if state is State.LOGGING_OUT:
        driven.machine.log_out(None, driven.now)
    if state is State.WAITING:
        driven.lose()
    if state is State.ENDED:
        driven.machine.close()
    assert driven.machine.state is state
    driven.note(driven.machine.close())
    assert (driven.machine.state, driven.machine.error) == (State.ENDED, None)
    driven.run(10_000)
    assert driven.machine.state is State.ENDED
