"""What a client sends when, and what an answer means; time stands in the test's hand."""

import math

import pytest

import protocol
from presence.client import (
    Busy,
    Connected,
    ConnectionLost,
    Delivered,
    Disconnected,
    Ended,
    Goodbye,
    Kicked,
    LimitReached,
    LoginRefused,
    NotConnected,
    PresenceChanged,
    RecipientDisconnected,
    RecipientOffline,
    Replaced,
    RequestFailed,
    RequestTimeout,
    ServerFailed,
    SessionLimit,
    State,
    Uncertain,
    Unreachable,
    Unsupported,
    UserState,
)
from presence.client.machine import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S, Machine
from presence.client.session import RETRY_S
from protocol import Code, Kind, Packet
from tests.client.driving import KEEPALIVE, Driven, login_ok

RETURN = [code for code in Code if code >= 100 and code.reconnect]
NO_RETURN = [code for code in Code if code >= 100 and not code.reconnect]


@pytest.fixture
def online() -> Driven:
    driven = Driven()
    driven.log_in()
    return driven


def beats(driven: Driven) -> list[Packet]:
    return [packet for packet in driven.sent if packet.kind == Kind.KEEPALIVE]


# Login


def test_the_first_packet_is_the_login() -> None:
    driven = Driven()
    driven.establish()
    assert driven.sent == [protocol.login("ann", id=1, device="phone")]


def test_a_login_that_breaks_a_rule_is_refused_before_anything_is_tried() -> None:
    with pytest.raises(protocol.EncodeError, match="control character"):
        Machine(protocol.login("a b"), 0.0)


def test_the_login_answer_is_told(online: Driven) -> None:
    assert online.pushes == [Connected("s-1", 30, 12, 1_700_000_000_000, again=False)]


def test_a_server_that_tells_no_interval_is_beaten_at_a_share_of_its_time_out() -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.ok(1, idle_timeout=10))
    assert isinstance(driven.pushes[0], Connected)
    assert driven.pushes[0].keepalive == 4.0


def test_no_connection_in_time_is_a_failed_attempt() -> None:
    driven = Driven()
    driven.run(CONNECT_TIMEOUT_S)
    assert [type(push) for push in driven.pushes] == [Disconnected]
    assert driven.machine.state is State.WAITING


def test_a_login_without_an_answer_is_a_failed_attempt() -> None:
    driven = Driven()
    driven.establish()
    driven.run(LOGIN_TIMEOUT_S)
    assert driven.pushes == [Disconnected("login_timeout", "no answer to the login within 6 s", retry_in=1.0)]


@pytest.mark.parametrize("code", RETURN)
def test_a_refusal_that_allows_a_return_is_tried_again_after_the_time_named(code: Code) -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.error(1, code, "not now", 7.0))
    assert driven.pushes == [Disconnected(code.reason, "not now", 8.0, code)]
    waited_in = []
    for seconds in (7.99, 0.01):
        driven.run(seconds)
        waited_in.append(driven.machine.state)
    assert waited_in == [State.WAITING, State.CONNECTING]


@pytest.mark.parametrize("code", NO_RETURN)
def test_a_refusal_that_forbids_a_return_ends_the_client(code: Code) -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.error(1, code, "no"))
    assert isinstance(driven.machine.error, LoginRefused)
    assert (driven.machine.error.code, driven.machine.error.message) == (code, "no")
    assert driven.machine.deadline == math.inf


def test_a_refusal_with_an_unknown_code_is_tried_again() -> None:
    driven = Driven()
    driven.establish()
    driven.receive(Packet(Kind.ERROR, 1, {"code": 999, "reason": "new", "message": ""}))
    assert driven.machine.state is State.WAITING


def test_a_refusal_without_an_id_is_one() -> None:
    driven = Driven()
    driven.establish()
    driven.receive(protocol.error(None, Code.BUSY, "full", 3.0))
    assert driven.pushes == [Disconnected("busy", "full", 4.0, Code.BUSY)]


@pytest.mark.parametrize("fails", ["unreachable", "closed", "refused"])
def test_a_first_attempt_that_decides_ends_the_client(fails: str) -> None:
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


def test_later_losses_are_no_first_attempt() -> None:
    driven = Driven(persistent=False)
    driven.log_in()
    driven.lose()
    driven.run(1.0)
    driven.lose()
    assert driven.machine.state is State.WAITING


# Beats


def test_it_beats_for_as_long_as_the_server_answers(online: Driven) -> None:
    online.chance = 0.5
    online.run(3600, answering=True)
    gaps = [after - before for before, after in zip(online.sent_at[2:], online.sent_at[3:], strict=False)]
    assert online.machine.state is State.ONLINE
    assert 300 <= len(beats(online)) <= 330
    assert max(gaps) <= KEEPALIVE


@pytest.mark.parametrize(("ask_every", "bound"), [(1, 2), (3, 4)])
def test_a_dead_server_is_noticed(ask_every: int, bound: int) -> None:
    worst = 0.0
    for quarters in range(48):
        driven = Driven(ask_every=ask_every)
        driven.log_in()
        driven.run(KEEPALIVE + quarters * KEEPALIVE / 4, answering=True)
        stopped_at = driven.now
        driven.run(KEEPALIVE * bound)
        lost = [push for push in driven.pushes if isinstance(push, Disconnected)]
        assert lost[0].reason == "dead_server"
        asked_at = next(
            at
            for at, packet in zip(driven.sent_at, driven.sent, strict=True)
            if at > stopped_at and packet.kind == Kind.KEEPALIVE and packet.id is not None
        )
        worst = max(worst, asked_at + KEEPALIVE - stopped_at)
    print(
        f"dead server, one beat of {ask_every} asks: noticed 1 interval after the first that asked, "
        f"at most {worst / KEEPALIVE:.2f} intervals after the stop"
    )
    assert worst <= bound * KEEPALIVE


def test_a_refused_beat_is_a_sign_of_life(online: Driven) -> None:
    online.run(KEEPALIVE)
    (asking,) = beats(online)
    online.receive(protocol.error(asking.id, Code.RATE_LIMITED, "slower"))
    online.run(KEEPALIVE * 2)
    assert online.machine.state is State.ONLINE


def test_after_a_pause_missed_beats_are_not_made_up_for(online: Driven) -> None:
    online.now += KEEPALIVE * 2.5
    before = len(online.sent)
    online.note(online.machine.tick(online.now))
    online.note(online.machine.tick(online.now))
    assert len(online.sent) - before == 1


# The end of a connection


def test_a_broken_connection_is_come_back_from(online: Driven) -> None:
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
def test_of_a_goodbye_its_own_word_decides(online: Driven, code: Code, reconnect: bool) -> None:
    payload = {"code": int(code), "reason": code.reason, "reconnect": reconnect, "retry_after": 2.0}
    online.receive(Packet(Kind.GOODBYE, None, payload))
    assert Goodbye(code, code.reason, reconnect, 2.0, "") in online.pushes
    if reconnect:
        assert online.pushes[-1] == Disconnected(code.reason, "", 3.0, code)
    else:
        assert isinstance(online.machine.error, Ended)
        assert online.machine.error.code == code


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.REPLACED, Replaced),
        (Code.KICKED, Kicked),
        (Code.SESSION_LIMIT, SessionLimit),
        (Code.AUTH_FAILED, Ended),
    ],
)
def test_an_end_for_good_is_typed(online: Driven, code: Code, error: type[Ended]) -> None:
    online.receive(protocol.goodbye(code))
    assert type(online.machine.error) is error


@pytest.mark.parametrize("code", [Code.PROTOCOL_ERROR, Code.TOO_LARGE, Code.NOT_LOGGED_IN])
def test_an_error_that_ends_the_connection_and_forbids_a_return_ends_the_client(
    online: Driven, code: Code
) -> None:
    online.receive(protocol.error(None, code, "what you sent"))
    online.lose()
    assert isinstance(online.machine.error, Ended)
    assert online.machine.error.code == code


def test_a_watch_too_many_does_not_forbid_a_return(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    online.receive(protocol.error(id, Code.TOO_LARGE, "too many watches"))
    online.lose()
    assert online.machine.state is State.WAITING


@pytest.mark.parametrize("code", [Code.UNSUPPORTED, Code.RECIPIENT_OFFLINE])
def test_an_error_that_refuses_one_request_does_not_forbid_a_return(online: Driven, code: Code) -> None:
    online.receive(protocol.error(7, code, "not that"))
    online.lose()
    assert online.machine.state is State.WAITING


def test_bytes_that_break_the_protocol_end_the_connection(online: Driven) -> None:
    online.note(online.machine.received(b"\0\0\0\0", online.now))
    assert isinstance(online.pushes[-1], Disconnected)
    assert online.pushes[-1].reason == "bad_server"


def test_what_follows_a_goodbye_is_dropped(online: Driven) -> None:
    online.receive(protocol.goodbye(Code.REPLACED), protocol.deliver("bob", "late", 1))
    assert not any(isinstance(push, Delivered) for push in online.pushes)


# Requests


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Code.UNSUPPORTED, Unsupported),
        (Code.RECIPIENT_OFFLINE, RecipientOffline),
        (Code.RECIPIENT_DISCONNECTED, RecipientDisconnected),
        (Code.AUTH_FAILED, RequestFailed),
        (Code.RATE_LIMITED, Busy),
        (Code.BUSY, Busy),
        (Code.SERVER_ERROR, ServerFailed),
        (Code.TOO_LARGE, LimitReached),
    ],
)
def test_an_error_reply_is_typed(online: Driven, code: Code, error: type[RequestFailed]) -> None:
    id = online.ask(protocol.message("bob", "hi"))
    online.receive(protocol.error(id, code, "no"))
    assert type(online.answers[id]) is error


@pytest.mark.parametrize("error", [ConnectionLost, RequestTimeout, ServerFailed])
def test_what_may_have_been_done_is_one_kind_of_error(error: type[Exception]) -> None:
    assert issubclass(error, Uncertain)


def test_answers_find_their_requests_in_any_order(online: Driven) -> None:
    first, second = online.ask(protocol.message("bob", 1)), online.ask(protocol.message("bob", 2))
    online.receive(protocol.ok(second, delivered=2), protocol.ok(first, delivered=1))
    assert online.answers == {first: {"delivered": 1}, second: {"delivered": 2}}


def messages(driven: Driven) -> list[tuple[int | None, object]]:
    """Return id and body of each message that was sent since the last call."""
    found = [(each.id, each.payload["body"]) for each in driven.sent if each.kind == Kind.MESSAGE]
    driven.sent.clear()
    return found


def gone(driven: Driven, *ids: int, retry_after: float = 4.0) -> None:
    """Their recipient has lost its connection."""
    code = Code.RECIPIENT_DISCONNECTED
    driven.receive(*(protocol.error(id, code, "may return", retry_after) for id in ids))


def test_a_message_is_sent_again_while_its_recipient_may_return(online: Driven) -> None:
    first = online.ask(protocol.message("bob", 1), retries=True)
    gone(online, first)
    assert messages(online) == [(first, 1)]
    online.run(RETRY_S - 0.01)
    assert messages(online) == []
    online.run(0.02)
    assert messages(online) == [(first, 1)]
    gone(online, first, retry_after=0.1)
    online.run(0.11)
    assert messages(online) == [(first, 1)]
    online.receive(protocol.ok(first, delivered=1))
    assert online.answers == {first: {"delivered": 1}}


def test_what_follows_to_the_same_recipient_stays_behind(online: Driven) -> None:
    one, two = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2))
    gone(online, one)
    three = online.ask(protocol.message("bob", 3), retries=True)
    other = online.ask(protocol.message("eve", "hi"), retries=True)
    gone(online, two)
    assert messages(online) == [(one, 1), (two, 2), (other, "hi")]
    online.run(RETRY_S)
    assert messages(online) == [(one, 1), (two, 2), (three, 3)]


def test_a_recipient_that_does_not_return_in_time_is_told(online: Driven) -> None:
    id = online.ask(protocol.message("bob", 1), 2.5, retries=True)
    behind = online.ask(protocol.message("bob", 2), 1.5, retries=True)
    sent = 0
    for _ in range(30):
        for each, _body in messages(online):
            sent += 1
            gone(online, each or 0, retry_after=60.0)
        online.run(0.1)
    assert isinstance(online.answers[id], RecipientDisconnected)
    assert isinstance(online.answers[behind], RecipientDisconnected)
    assert sent == 5


def test_a_message_is_not_sent_again_where_the_program_does_not_want_it(online: Driven) -> None:
    id = online.ask(protocol.message("bob", 1))
    gone(online, id)
    assert isinstance(online.answers[id], RecipientDisconnected)


def test_a_message_that_waits_is_surely_not_delivered_when_the_connection_ends(online: Driven) -> None:
    id = online.ask(protocol.message("bob", 1), retries=True)
    gone(online, id)
    online.lose()
    assert isinstance(online.answers[id], RecipientDisconnected)


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_dropped(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]), timeout_s=2.0)
    online.run(2.0)
    assert isinstance(online.answers[id], RequestTimeout)
    online.receive(protocol.ok(id, presence={}))
    assert online.machine.state is State.ONLINE


def test_a_lost_connection_answers_what_is_due(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]))
    online.lose()
    assert isinstance(online.answers[id], ConnectionLost)


def test_an_id_is_never_used_again_by_a_later_connection(online: Driven) -> None:
    before = online.ask(protocol.query(["bob"]))
    online.lose()
    online.run(1.0)
    online.log_in()
    assert online.ask(protocol.query(["bob"])) > before


def test_a_request_while_offline_says_so(online: Driven) -> None:
    online.lose()
    with pytest.raises(NotConnected):
        online.ask(protocol.query(["bob"]))


def test_a_request_that_is_too_large_is_refused_here(online: Driven) -> None:
    before = len(online.sent)
    with pytest.raises(protocol.EncodeError, match="over the limit"):
        online.ask(protocol.message("bob", "x" * 17_000))
    online.note([])
    assert len(online.sent) == before


def test_messages_and_presence_are_handed_out_in_order(online: Driven) -> None:
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


def test_a_logout_ends_with_its_answer(online: Driven) -> None:
    id = online.machine.log_out("background", online.now)
    online.note([])
    assert online.sent[-1] == protocol.logout("background", id=id)
    online.receive(protocol.ok(id))
    assert online.answers == {id: {}}
    assert (online.machine.state, online.machine.error) == (State.ENDED, None)


def test_a_logout_without_an_answer_ends_all_the_same(online: Driven) -> None:
    id = online.machine.log_out(None, online.now)
    online.run(LOGOUT_TIMEOUT_S)
    assert isinstance(online.answers[id], RequestTimeout)
    assert (online.machine.state, online.machine.error) == (State.ENDED, None)


def test_a_logout_while_offline_ends_and_says_that_nobody_was_told(online: Driven) -> None:
    online.lose()
    with pytest.raises(NotConnected):
        online.machine.log_out(None, online.now)
    assert online.machine.state is State.ENDED


def test_after_the_end_everything_is_refused(online: Driven) -> None:
    online.machine.close()
    with pytest.raises(Ended, match="logged out or closed"):
        online.ask(protocol.query(["bob"]))


def test_a_new_token_is_for_later_logins(online: Driven) -> None:
    online.machine.lasting.log_in_with(token="fresh")
    online.receive(protocol.goodbye(Code.AUTH_EXPIRED))
    online.run(1.0)
    online.establish()
    assert online.sent[-1].payload == {"uid": "ann", "device": "phone", "token": "fresh"}


def test_a_token_that_breaks_a_rule_changes_nothing(online: Driven) -> None:
    with pytest.raises(protocol.EncodeError):
        online.machine.lasting.log_in_with(token="x" * 800)
    online.lose()
    online.run(1.0)
    online.establish()
    assert "token" not in online.sent[-1].payload


@pytest.mark.parametrize("state", list(State))
def test_a_close_ends_it_in_every_state(state: State) -> None:
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
