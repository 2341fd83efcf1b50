"""Tokens that the program makes: before each login, and before the current one expires."""

import math
from typing import Any

import pytest

from presence import protocol
from presence.client import Connected, Disconnected, Goodbye, LoginRefused, NoToken, Replaced, State
from presence.client.connection import ANSWER_TIMEOUT_S
from presence.client.login_token import MIN_RENEWAL_DELAY_S, TOKEN_TIMEOUT_S
from presence.client.state_machine import CONNECT_TIMEOUT_S
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import SERVER_TIME_S, Driven, login_ok, token

LIFE_S = 3600.0
FIRST = token(SERVER_TIME_S + LIFE_S, 1)
SECOND = token(SERVER_TIME_S + 2 * LIFE_S, 2)
THIRD = token(SERVER_TIME_S + 3 * LIFE_S, 3)


@pytest.fixture
def online() -> Driven:
    """A client logged in with a token valid for an hour, with `chance` 0."""
    driven = Driven(fetches=True, chance=0.0)
    driven.provide_token(FIRST)
    driven.log_in()
    return driven


def logins(driven: Driven) -> list[str]:
    return [packet.payload["token"] for packet in driven.sent if packet.kind == Kind.LOGIN]


def updates(driven: Driven) -> list[Packet]:
    return [packet for packet in driven.sent if packet.kind == Kind.UPDATE]


def answer(driven: Driven, refusal: Code | None = None, retry_after: float | None = None) -> None:
    """Answer the last update."""
    id = updates(driven)[-1].id
    assert id is not None
    driven.receive(protocol.error(id, refusal, "no", retry_after) if refusal else protocol.ok(id))


def until_wanted(driven: Driven) -> float:
    """Let time pass until a token is wanted; return how long that took, in seconds."""
    began = driven.now
    while not driven.machine.wants_token:
        assert driven.machine.state is State.ONLINE
        assert driven.now - began < 10 * LIFE_S
        driven.run(max(0.0, driven.machine.deadline - driven.now), answering=True)
    return driven.now - began


# Before a login


def test_a_token_is_requested_before_the_connection_is_made() -> None:
    driven = Driven(fetches=True)
    assert (driven.machine.state, driven.machine.wants_token) == (State.FETCHING_TOKEN, True)
    driven.run(TOKEN_TIMEOUT_S - 1)
    driven.provide_token(FIRST)
    driven.run(CONNECT_TIMEOUT_S - 1)
    assert (driven.machine.state, driven.machine.wants_token) == (State.CONNECTING, False)
    driven.establish()
    assert logins(driven) == [FIRST]


def test_a_missing_token_is_a_failed_attempt_and_a_late_one_is_ignored() -> None:
    driven = Driven(fetches=True)
    driven.run(TOKEN_TIMEOUT_S)
    message = "no token: TimeoutError: none came within 30 s"
    assert driven.pushes == [Disconnected("no_token", message, retry_in=1.0)]
    assert driven.machine.wants_token is False
    driven.provide_token(FIRST)
    assert driven.machine.state is State.WAITING
    driven.run(1.0)
    assert driven.machine.wants_token is True


@pytest.mark.parametrize("given", [OSError("no way there"), "", "x" * 800, "\ud800", None, b"bytes", 7])
def test_an_invalid_token_is_a_failed_attempt(given: Any) -> None:
    driven = Driven(fetches=True)
    driven.provide_token(given)
    assert [push.reason for push in driven.pushes if isinstance(push, Disconnected)] == ["no_token"]
    driven.run(1.0)
    assert driven.machine.wants_token is True


def test_a_decisive_first_attempt_ends_with_the_programs_error() -> None:
    driven = Driven(fetches=True, persistent=False)
    failure = OSError("no way there")
    driven.provide_token(failure)
    assert isinstance(driven.machine.error, NoToken)
    assert driven.machine.error.__cause__ is failure


def test_after_a_token_expired_the_client_reconnects_with_another(online: Driven) -> None:
    online.receive(protocol.goodbye(Code.AUTH_EXPIRED, "the token has expired"))
    online.run(0.0)
    online.provide_token(SECOND)
    online.log_in()
    assert [type(push) for push in online.pushes] == [Connected, Goodbye, Disconnected, Connected]
    assert logins(online) == [FIRST, SECOND]


# Tokens that the server refuses


@pytest.mark.parametrize(
    ("persistent", "second", "tried"),
    [(True, SECOND, [FIRST, SECOND]), (False, SECOND, [FIRST, SECOND]), (False, FIRST, [FIRST])],
    ids=["another", "another on the first attempt", "the same on the first attempt"],
)
def test_one_other_token_is_tried(persistent: bool, second: str, tried: list[str]) -> None:
    driven = Driven(fetches=True, persistent=persistent)
    for each in (FIRST, second):
        driven.provide_token(each)
        if driven.machine.state is State.CONNECTING:
            driven.establish()
            driven.receive(protocol.error(1, Code.AUTH_FAILED, "no"))
        driven.run(1.0)
    assert logins(driven) == tried
    assert isinstance(driven.machine.error, LoginRefused)


def test_a_refused_token_is_not_sent_again_and_another_is_requested_with_backoff(online: Driven) -> None:
    online.chance = 1.0
    online.lose()
    online.run(online.machine.deadline - online.now)
    online.provide_token(FIRST)
    online.establish()
    online.receive(protocol.error(1, Code.AUTH_FAILED, "no"))
    pauses = []
    for stale in (FIRST, FIRST, token(SERVER_TIME_S - 1, 9), FIRST):
        online.run(online.machine.deadline - online.now)
        online.provide_token(stale)
        pauses.append(online.machine.deadline - online.now)
    assert logins(online) == [FIRST, FIRST]
    assert pauses == sorted(set(pauses))
    lost = online.pushes[-1]
    assert isinstance(lost, Disconnected)
    assert (lost.reason, lost.message) == ("no_token", "the token is the one that the server has refused")
    online.run(online.machine.deadline - online.now)
    online.provide_token(SECOND)
    online.establish()
    online.receive(login_ok())
    assert online.machine.state is State.ONLINE


@pytest.mark.parametrize("fails", ["before it is connected", "before the answer"])
def test_a_good_token_whose_connection_fails_is_tried_again_after_a_refusal(fails: str) -> None:
    driven = Driven(fetches=True, chance=0.0)
    driven.provide_token(FIRST)
    driven.establish()
    driven.receive(protocol.error(1, Code.AUTH_FAILED, "no"))
    for _ in range(3):
        driven.run(0.0)
        driven.provide_token(SECOND)
        if fails == "before the answer":
            driven.establish()
        driven.lose()
    driven.run(0.0)
    driven.provide_token(SECOND)
    driven.log_in()
    assert logins(driven)[-1] == SECOND


def test_a_token_refused_while_online_is_not_sent_with_a_later_login(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    answer(online, Code.AUTH_FAILED)
    online.lose()
    online.run(0.0)
    online.provide_token(SECOND)
    lost = online.pushes[-1]
    assert isinstance(lost, Disconnected)
    assert (lost.reason, online.machine.state) == ("no_token", State.WAITING)
    online.run(0.0)
    online.provide_token(THIRD)
    online.log_in()
    assert logins(online) == [FIRST, THIRD]


def test_a_granted_login_resets_refusals() -> None:
    driven = Driven(fetches=True, chance=0.0)
    for each in (FIRST, THIRD):
        driven.provide_token(each)
        driven.establish()
        driven.receive(protocol.error(1, Code.AUTH_FAILED, "no"))
        driven.run(0.0)
        driven.provide_token(SECOND)
        driven.log_in()
        driven.lose()
        driven.run(0.0)
    assert driven.machine.state is State.FETCHING_TOKEN


# While online


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.8), (1.0, 0.7)])
def test_a_fresh_token_is_requested_before_the_current_one_expires(chance: float, share: float) -> None:
    driven = Driven(fetches=True, chance=chance)
    driven.provide_token(FIRST)
    driven.log_in()
    assert until_wanted(driven) == pytest.approx(share * LIFE_S)


def test_a_renewed_token_is_used_for_later_logins_and_sets_the_next_renewal(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    assert [packet.payload for packet in updates(online)] == [{"token": SECOND}]
    answer(online)
    assert online.machine.persistent_state.token == SECOND
    assert online.answers == {}, "it is not a request of the program"
    assert until_wanted(online) == pytest.approx(0.8 * (2 * LIFE_S - 0.8 * LIFE_S))


def test_a_token_that_the_program_has_sent_itself_sets_the_next_renewal(online: Driven) -> None:
    online.receive(protocol.ok(online.ask(protocol.update(token=SECOND))))
    assert until_wanted(online) == pytest.approx(0.8 * 2 * LIFE_S)


@pytest.mark.parametrize(
    "opaque",
    [
        *("secret", "a.b", "a.!.c", "e30.bm8.c2ln", "e30.W10.c2ln", "e30.e30.c2ln", "e30.Nw.c2ln"),
        "e30." + "W1tb" * 170 + ".c2ln",  # nested lists
        *(token(exp) for exp in (None, "soon", [1], math.inf, math.nan, 10**400)),
    ],
    ids=range(14),
)
def test_a_token_without_an_expiry_is_not_renewed(opaque: str) -> None:
    driven = Driven(fetches=True)
    driven.provide_token(opaque)
    driven.log_in()
    driven.run(10 * LIFE_S, answering=True)
    assert driven.machine.wants_token is False


def test_an_expired_token_does_not_cause_a_busy_loop() -> None:
    driven = Driven(fetches=True, chance=0.0)
    driven.provide_token(token(SERVER_TIME_S - 100))
    driven.log_in()
    assert until_wanted(driven) == pytest.approx(MIN_RENEWAL_DELAY_S)


@pytest.mark.parametrize(("claims", "share"), [({"iat": SERVER_TIME_S - 50_000}, 0.8), ({}, None)])
def test_a_server_whose_clock_was_set_back_is_not_sent_a_token_each_second(
    claims: dict[str, int], share: float | None
) -> None:
    """By the time that it had sent at the login, the tokens that it accepts have expired long ago."""
    driven = Driven(fetches=True, chance=0.0)
    ends = SERVER_TIME_S - 50_000 + LIFE_S
    driven.provide_token(token(ends, 1))
    driven.log_in()
    assert until_wanted(driven) == pytest.approx(MIN_RENEWAL_DELAY_S)
    driven.provide_token(token(ends, 2, **claims))
    answer(driven)
    if share is None:
        driven.run(10 * LIFE_S, answering=True)
        assert not driven.machine.wants_token, "the expiry is unknown; the server will send 302"
    else:
        assert until_wanted(driven) == pytest.approx(share * LIFE_S)


@pytest.mark.parametrize("given", [FIRST, OSError("no way there"), "", "x" * 800])
def test_without_a_fresh_token_it_is_requested_later(online: Driven, given: str | Exception) -> None:
    until_wanted(online)
    online.provide_token(given)
    assert updates(online) == []
    assert online.machine.state is State.ONLINE
    assert until_wanted(online) == pytest.approx(MIN_RENEWAL_DELAY_S)


def test_a_program_that_hangs_is_asked_again(online: Driven) -> None:
    until_wanted(online)
    online.run(TOKEN_TIMEOUT_S, answering=True)
    assert online.machine.wants_token is False
    assert until_wanted(online) == pytest.approx(MIN_RENEWAL_DELAY_S)


def test_a_refused_token_is_not_sent_again(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    answer(online, Code.AUTH_FAILED)
    for each in (SECOND, THIRD):
        until_wanted(online)
        online.provide_token(each)
    assert [packet.payload["token"] for packet in updates(online)] == [SECOND, THIRD]
    assert online.machine.persistent_state.token == FIRST


def test_a_busy_server_is_sent_the_token_after_retry_after(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    answer(online, Code.BUSY, 7.0)
    assert until_wanted(online) == pytest.approx(MIN_RENEWAL_DELAY_S + 7.0)
    online.provide_token(SECOND)
    assert [packet.payload["token"] for packet in updates(online)] == [SECOND, SECOND]


def test_an_update_without_an_answer_is_repeated(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    began = online.now
    while not online.machine.wants_token:
        online.run(online.machine.deadline - online.now)
        for packet in online.sent:
            if packet.kind == Kind.KEEPALIVE and packet.id is not None:
                online.receive(protocol.ok(packet.id))
    assert online.now - began == pytest.approx(ANSWER_TIMEOUT_S + MIN_RENEWAL_DELAY_S)
    assert online.answers == {}


def test_a_server_that_checks_no_tokens_is_sent_no_more(online: Driven) -> None:
    until_wanted(online)
    online.provide_token(SECOND)
    answer(online, Code.UNSUPPORTED)
    online.run(10 * LIFE_S, answering=True)
    assert (len(updates(online)), online.machine.wants_token) == (1, False)


def test_a_pending_token_request_ends_with_the_client(online: Driven) -> None:
    until_wanted(online)
    online.receive(protocol.goodbye(Code.REPLACED))
    assert isinstance(online.machine.error, Replaced)
    assert online.machine.wants_token is False
    online.provide_token(SECOND)
    assert updates(online) == []
