"""What a client sends and when, and what an answer means; the test controls the time."""

import math
import random
import statistics
import time

import pytest

from presence import protocol
from presence.client import (
    Banned,
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
    RequestError,
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
from presence.client.message_lines import STEADY_S
from presence.client.pending import SPARE_TIMES
from presence.client.reconnect import Backoff
from presence.client.session import (
    ASK_EVERY,
    KEEPALIVE_JITTER,
    MAX_CONFIRMED,
    MESSAGE_RETRY_INTERVAL_S,
    MIN_MESSAGE_RETRY_S,
    WRITE_GRACE_S,
    Keepalives,
)
from presence.client.state_machine import CONNECT_TIMEOUT_S, LOGIN_TIMEOUT_S, LOGOUT_TIMEOUT_S
from presence.protocol import Code, Kind, Packet
from tests.client.machine_driver import KEEPALIVE, Driven, login_ok

RETURN = [code for code in Code if code >= 100 and code.reconnect]
NO_RETURN = [code for code in Code if code >= 100 and not code.reconnect]
ENDED = {
    Code.REPLACED: Replaced,
    Code.KICKED: Kicked,
    Code.SESSION_LIMIT: SessionLimit,
    Code.BANNED: Banned,
}


@pytest.fixture
def online() -> Driven:
    driven = Driven()
    driven.log_in()
    return driven


def keepalives(driven: Driven) -> list[Packet]:
    return [packet for packet in driven.sent if packet.kind == Kind.KEEPALIVE]


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


# Keepalives


def test_keepalives_continue_as_long_as_the_server_answers(online: Driven) -> None:
    online.chance = 0.5
    online.run(3600, answering=True)
    gaps = [after - before for before, after in zip(online.sent_at[2:], online.sent_at[3:], strict=False)]
    assert online.machine.state is State.ONLINE
    assert 300 <= len(keepalives(online)) <= 330
    assert max(gaps) <= KEEPALIVE


@pytest.mark.parametrize(("ask_every", "bound"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("quarters", range(48))
def test_a_dead_server_is_detected(ask_every: int, bound: int, quarters: int) -> None:
    driven = Driven(ask_every=ask_every)
    driven.log_in()
    driven.run(KEEPALIVE + quarters * KEEPALIVE / 4, answering=True)
    stopped_at = driven.now
    while driven.machine.state is State.ONLINE:
        driven.run(driven.machine.deadline - driven.now)
    assert driven.now - stopped_at <= bound * KEEPALIVE
    sent = zip(driven.sent_at, driven.sent, strict=True)
    asked_at = next(at for at, packet in sent if at > stopped_at and packet.id is not None)
    assert driven.now == pytest.approx(asked_at + KEEPALIVE)
    lost = driven.pushes[-1]
    assert isinstance(lost, Disconnected)
    assert lost.reason == "dead_server"


def test_a_refused_keepalive_is_a_sign_of_life(online: Driven) -> None:
    online.run(KEEPALIVE)
    (asking,) = keepalives(online)
    online.receive(protocol.error(asking.id, Code.RATE_LIMITED, "slower"))
    online.run(KEEPALIVE * 2)
    assert online.machine.state is State.ONLINE


def test_missed_keepalives_are_not_made_up_for_after_a_pause(online: Driven) -> None:
    online.now += KEEPALIVE * 2.5
    before = len(online.sent)
    online.note(online.machine.tick(online.now))
    online.note(online.machine.tick(online.now))
    assert len(online.sent) - before == 1


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
def test_an_error_reply_is_typed(online: Driven, code: Code, error: type[RequestError]) -> None:
    id = online.ask(protocol.message("bob", "hi"))
    online.receive(protocol.error(id, code, "no"))
    assert type(online.answers[id]) is error


def test_a_failure_of_the_server_is_perhaps_carried_out_and_no_refusal(online: Driven) -> None:
    id = online.ask(protocol.message("bob", "hi"))
    online.receive(protocol.error(id, Code.SERVER_ERROR, "no", 2.0))
    failed = online.answers[id]
    assert isinstance(failed, ServerFailed)
    assert isinstance(failed, Uncertain)
    assert not isinstance(failed, RequestFailed)
    assert (failed.code, failed.reason, failed.message, failed.retry_after) == (
        403,
        "server_error",
        "no",
        2.0,
    )


def test_answers_match_their_requests_in_any_order(online: Driven) -> None:
    first, second = online.ask(protocol.message("bob", 1)), online.ask(protocol.message("bob", 2))
    online.receive(protocol.ok(second, delivered=2), protocol.ok(first, delivered=1))
    assert online.answers == {first: {"delivered": 1}, second: {"delivered": 2}}


def messages(driven: Driven) -> list[tuple[int | None, object]]:
    """Return id and body of each message that was sent since the last call."""
    found = [(each.id, each.payload["body"]) for each in driven.sent if each.kind == Kind.MESSAGE]
    driven.sent.clear()
    return found


def recipient_disconnected(driven: Driven, *ids: int, retry_after: float = 4.0) -> None:
    """The recipients of these messages have lost their connection."""
    code = Code.RECIPIENT_DISCONNECTED
    driven.receive(*(protocol.error(id, code, "may return", retry_after) for id in ids))


def test_a_message_is_resent_while_its_recipient_may_return(online: Driven) -> None:
    first = online.ask(protocol.message("bob", 1), retries=True)
    recipient_disconnected(online, first)
    assert messages(online) == [(first, 1)]
    online.run(MESSAGE_RETRY_INTERVAL_S - 0.01)
    assert messages(online) == []
    online.run(0.02)
    assert messages(online) == [(first, 1)]
    recipient_disconnected(online, first, retry_after=0.1)
    online.run(0.11)
    assert messages(online) == [(first, 1)]
    online.receive(protocol.ok(first, delivered=1))
    assert online.answers == {first: {"delivered": 1}}


class Recipient:
    """A recipient that has lost its connection, until the test says that it is back."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.is_back = False
        self.got: list[object] = []

    def answer(self) -> None:
        """Answer the messages that were sent, also those that follow from the answers."""
        while sent := messages(self.driven):
            for id, body in sent:
                if self.is_back:
                    self.got.append(body)
                    self.driven.receive(protocol.ok(id, delivered=1))
                else:
                    recipient_disconnected(self.driven, id or 0)


@pytest.mark.parametrize("retries", [True, False], ids=["that is retried", "that is not retried"])
def test_a_message_in_flight_to_a_recipient_that_returns_is_not_overtaken_by_one(
    online: Driven, retries: bool
) -> None:
    bob = Recipient(online)
    online.ask(protocol.message("bob", 1), retries=True)
    (first,) = messages(online)
    online.ask(protocol.message("bob", 2), retries=retries)  # by now bob is back: the server would deliver it
    bob.is_back = True
    bob.answer()
    recipient_disconnected(online, first[0] or 0)
    online.run(MESSAGE_RETRY_INTERVAL_S)
    bob.answer()
    assert bob.got == [1, 2]


def test_messages_wait_for_those_before_them_to_the_same_recipient_only(online: Driven) -> None:
    bob = Recipient(online)
    first, *_ = (online.ask(protocol.message("bob", number), retries=True) for number in (1, 2, 3))
    other = online.ask(protocol.message("eve", "hi"), retries=True)
    assert [body for _, body in messages(online)] == [1, "hi"]
    recipient_disconnected(online, first)
    online.receive(protocol.ok(other, delivered=1))
    online.run(MESSAGE_RETRY_INTERVAL_S)
    bob.is_back = True
    bob.answer()
    assert bob.got == [1, 2, 3]


def ask_together(driven: Driven, *bodies: int) -> list[int]:
    return [driven.ask(protocol.message("bob", body), retries=True) for body in bodies]


def test_after_the_first_messages_to_a_user_are_sent_together(online: Driven) -> None:
    first, *_ = ask_together(online, 1, 2, 3)
    online.receive(protocol.ok(first, delivered=1))
    assert [body for _, body in messages(online)] == [1, 2, 3]
    ask_together(online, 4, 5)
    assert [body for _, body in messages(online)] == [4, 5]


def test_any_answer_but_that_the_recipient_may_return_releases_those_that_wait(online: Driven) -> None:
    first, *_ = ask_together(online, 1, 2, 3)
    online.receive(protocol.error(first, Code.RECIPIENT_OFFLINE, "no"))
    assert [body for _, body in messages(online)] == [1, 2, 3]


def test_a_while_after_a_delivery_the_first_message_goes_alone_again(online: Driven) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    online.run(STEADY_S, answering=True)
    messages(online)
    ask_together(online, 2, 3)
    assert [body for _, body in messages(online)] == [2]


def test_a_refused_message_that_a_later_one_has_overtaken_fails_and_is_not_sent_again(online: Driven) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    second, third, fourth = ask_together(online, 2, 3, 4)
    recipient_disconnected(online, second, fourth)
    assert second not in online.answers, "the answer to the third is open"
    online.receive(protocol.ok(third, delivered=1))
    assert isinstance(online.answers[second], RecipientDisconnected)
    messages(online)
    online.run(MESSAGE_RETRY_INTERVAL_S, answering=True)
    assert messages(online) == [(fourth, 4)]


def test_a_message_that_goes_alone_behind_those_in_flight_overtakes_them_too(online: Driven) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    (second,) = ask_together(online, 2)
    online.run(STEADY_S, answering=True)
    third, fourth = ask_together(online, 3, 4)
    messages(online)
    recipient_disconnected(online, second)
    online.receive(protocol.ok(third, delivered=1))
    assert isinstance(online.answers[second], RecipientDisconnected)
    assert messages(online) == [(fourth, 4)]


def test_a_refused_message_whose_pause_is_over_is_sent_after_that_before_it_has_failed(
    online: Driven,
) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    second, third, fourth = ask_together(online, 2, 3, 4)
    recipient_disconnected(online, second, third)
    messages(online)
    online.run(MESSAGE_RETRY_INTERVAL_S, answering=True)
    online.receive(protocol.error(fourth, Code.BUSY, "no"))
    assert messages(online) == [(second, 2)]
    online.receive(protocol.error(second, Code.BUSY, "no"))
    assert messages(online) == [(third, 3)]


@pytest.mark.parametrize("how", ["times out", "is abandoned", "fails in the server"])
def test_a_message_whose_end_is_uncertain_overtakes_too(online: Driven, how: str) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    second = online.ask(protocol.message("bob", 2), 60.0, retries=True)
    third = online.ask(protocol.message("bob", 3), 0.5, retries=True)
    recipient_disconnected(online, second)
    if how == "times out":
        online.run(0.5)
    elif how == "is abandoned":
        online.note(online.machine.abandon_request(third))
    else:
        online.receive(protocol.error(third, Code.SERVER_ERROR, "no"))
    assert isinstance(online.answers[second], RecipientDisconnected)
    messages(online)
    online.run(5 * MESSAGE_RETRY_INTERVAL_S, answering=True)
    assert messages(online) == []


@pytest.mark.parametrize("overtaker_first", [True, False])
def test_refused_messages_are_sent_again_only_when_none_is_in_flight(
    online: Driven, overtaker_first: bool
) -> None:
    online.receive(protocol.ok(ask_together(online, 1)[0], delivered=1))
    second, third = ask_together(online, 2, 3)
    messages(online)
    if overtaker_first:
        online.receive(protocol.ok(third, delivered=1))
        recipient_disconnected(online, second)
    else:
        recipient_disconnected(online, second)
        online.run(2 * MESSAGE_RETRY_INTERVAL_S, answering=True)
        assert messages(online) == []
        online.receive(protocol.ok(third, delivered=1))
    assert isinstance(online.answers[second], RecipientDisconnected)


def test_messages_that_are_not_retried_wait_for_none(online: Driven) -> None:
    for number in (1, 2, 3):
        online.ask(protocol.message("bob", number))
    assert [body for _, body in messages(online)] == [1, 2, 3]


def test_a_message_that_waited_for_another_is_certainly_unsent_when_the_connection_is_lost(
    online: Driven,
) -> None:
    first, second = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2))
    online.lose()
    assert isinstance(online.answers[first], ConnectionLost)
    assert isinstance(online.answers[second], NotConnected)


def test_a_request_in_flight_when_the_client_is_ended_is_perhaps_carried_out(online: Driven) -> None:
    first, second = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2))
    online.receive(protocol.goodbye(Code.KICKED))
    assert isinstance(online.answers[first], ConnectionLost)
    assert isinstance(online.answers[second], Kicked), "it was not sent"


def test_nothing_that_may_wait_follows_a_logout(online: Driven) -> None:
    first, held = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2))
    away = online.ask(protocol.message("eve", 3), retries=True)
    online.receive(protocol.error(away, Code.RECIPIENT_DISCONNECTED, "may return", 0.1))
    for name in ("u1", "u2", "u3"):
        online.machine.watch_nowait([name], online.now)
    online.note([])
    online.machine.log_out(None, online.now)
    online.note([])
    assert online.sent[-1].kind == Kind.LOGOUT
    online.receive(protocol.ok(first, delivered=1))
    online.receive(*(protocol.ok(each.id, presence={}) for each in online.sent if each.kind == Kind.WATCH))
    online.run(1.0)
    assert online.sent[-1].kind == Kind.LOGOUT
    online.receive(protocol.ok(online.sent[-1].id))
    assert isinstance(online.answers[held], NotConnected)
    assert isinstance(online.answers[away], RecipientDisconnected)


def test_a_request_times_out_during_a_logout_too(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]), 1.0)
    online.machine.log_out(None, online.now)
    online.note([])
    online.run(1.0)
    assert isinstance(online.answers[id], RequestTimeout)


def test_an_abandoned_watch_refused_as_too_large_is_no_reason_to_stay_away(online: Driven) -> None:
    id = online.ask(protocol.watch(["bob"]))
    online.machine.abandon_request(id)
    online.note([])
    online.receive(protocol.error(id, Code.TOO_LARGE, "too many"))
    online.lose()
    assert online.machine.state is State.WAITING


def test_a_message_waits_no_longer_than_its_own_time_for_one_without_an_answer(online: Driven) -> None:
    first = online.ask(protocol.message("bob", 1), 3.0, retries=True)
    second = online.ask(protocol.message("bob", 2), 2.0, retries=True)
    third = online.ask(protocol.message("bob", 3), 9.0, retries=True)
    messages(online)
    online.run(2.0)
    assert isinstance(online.answers[second], RequestTimeout)
    online.run(1.0)
    assert isinstance(online.answers[first], RequestTimeout)
    assert messages(online) == [(third, 3)]


def test_a_recipient_that_does_not_return_in_time_is_an_error(online: Driven) -> None:
    id = online.ask(protocol.message("bob", 1), 2.5, retries=True)
    behind = online.ask(protocol.message("bob", 2), 1.5, retries=True)
    sent = 0
    for _ in range(30):
        for each, _body in messages(online):
            sent += 1
            recipient_disconnected(online, each or 0, retry_after=60.0)
        online.run(0.1)
    assert isinstance(online.answers[id], RecipientDisconnected)
    assert isinstance(online.answers[behind], RecipientDisconnected)
    assert sent == 3


def test_a_message_waiting_to_be_resent_is_certainly_undelivered_when_the_connection_ends(
    online: Driven,
) -> None:
    id = online.ask(protocol.message("bob", 1), retries=True)
    recipient_disconnected(online, id)
    online.lose()
    assert isinstance(online.answers[id], RecipientDisconnected)


def test_an_abandoned_message_is_not_sent_again_and_those_behind_it_are(online: Driven) -> None:
    one, two, three = (online.ask(protocol.message("bob", n), retries=True) for n in (1, 2, 3))
    recipient_disconnected(online, one)
    messages(online)
    for id in (three, one):
        online.machine.abandon_request(id)
    four = online.ask(protocol.message("bob", 4), retries=True)
    assert messages(online) == [(two, 2)]
    online.receive(protocol.ok(two, delivered=1))
    assert messages(online) == [(four, 4)]


def test_a_message_after_an_abandoned_one_does_not_wait(online: Driven) -> None:
    one = online.ask(protocol.message("bob", 1), retries=True)
    recipient_disconnected(online, one)
    online.machine.abandon_request(one)
    messages(online)
    two = online.ask(protocol.message("bob", 2), retries=True)
    assert messages(online) == [(two, 2)]


def test_a_message_is_not_sent_again_at_once_whatever_the_server_asks_for(online: Driven) -> None:
    id = online.ask(protocol.message("bob", 1), retries=True)
    recipient_disconnected(online, id, retry_after=0.0)
    messages(online)
    online.run(MIN_MESSAGE_RETRY_S - 0.01)
    assert messages(online) == []
    online.run(0.02)
    assert messages(online) == [(id, 1)]


def cost_s(driven: Driven, count: int) -> float:
    """Return the processor time of one of so many requests in flight together, the least of three."""
    costs = []
    for _ in range(3):
        began = time.process_time()
        ids = [driven.machine.request(protocol.query(["bob"]), 10.0, driven.now) for _ in range(count)]
        for id in ids:
            assert driven.machine.deadline > driven.now
            driven.machine.received(protocol.encode(protocol.ok(id)), driven.now)
        costs.append(time.process_time() - began)
    return min(costs) / count


def test_the_cost_of_a_request_does_not_grow_with_those_in_flight(online: Driven) -> None:
    assert cost_s(online, 4000) < 3 * cost_s(online, 250)


def test_the_times_of_answered_requests_are_bounded(online: Driven) -> None:
    online.ask(protocol.query(["bob"]))  # never answered: the first in the order of times
    for _ in range(5000):
        online.receive(protocol.ok(online.ask(protocol.query(["bob"]), 20.0)))
    assert online.machine._connection is not None
    assert len(online.machine._connection._requests._times) <= 2 + SPARE_TIMES + 1


@pytest.mark.parametrize("packet", [protocol.query(["bob"], detail=True), protocol.watch(["bob"])])
def test_a_request_refused_as_too_large_is_no_reason_to_stay_away(online: Driven, packet: Packet) -> None:
    online.receive(protocol.error(online.ask(packet), Code.TOO_LARGE, "ask for fewer users"))
    online.lose()
    assert online.machine.state is State.WAITING


def test_a_refused_idle_timeout_changes_no_keepalives(online: Driven) -> None:
    id = online.ask(protocol.update(idle_timeout=0.1))
    online.receive(protocol.error(id, Code.UNSUPPORTED, "no"))
    online.run(KEEPALIVE, answering=True)
    before = online.machine.keepalives_sent
    online.run(2 * KEEPALIVE, answering=True)
    assert online.machine.state is State.ONLINE
    assert online.machine.keepalives_sent - before <= 3


def test_a_client_closed_while_it_connected_stays_closed() -> None:
    driven = Driven()
    driven.machine.close()
    driven.establish()
    assert (driven.machine.state, driven.sent) == (State.ENDED, [])


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_dropped(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]), timeout_s=2.0)
    online.run(2.0)
    assert isinstance(online.answers[id], RequestTimeout)
    assert isinstance(online.answers[id], Uncertain)
    online.receive(protocol.ok(id, presence={}))
    assert online.machine.state is State.ONLINE


def test_a_lost_connection_fails_pending_requests(online: Driven) -> None:
    id = online.ask(protocol.query(["bob"]))
    online.lose()
    assert isinstance(online.answers[id], ConnectionLost)
    assert isinstance(online.answers[id], Uncertain)


def test_an_id_is_never_reused_by_a_later_connection(online: Driven) -> None:
    before = online.ask(protocol.query(["bob"]))
    online.lose()
    online.run(1.0)
    online.log_in()
    assert online.ask(protocol.query(["bob"])) > before


def test_a_request_while_offline_is_an_error(online: Driven) -> None:
    online.lose()
    with pytest.raises(NotConnected):
        online.ask(protocol.query(["bob"]))


def test_a_request_that_is_too_large_is_refused_locally(online: Driven) -> None:
    before = len(online.sent)
    with pytest.raises(protocol.EncodeError, match="over the limit"):
        online.ask(protocol.message("bob", "x" * 17_000))
    online.note([])
    assert len(online.sent) == before


# Confirmations


def confirmed(driven: Driven) -> list[list[int]]:
    return [packet.payload["confirmed"] for packet in keepalives(driven) if packet.payload]


def test_messages_that_are_read_together_are_confirmed_together_and_immediately(online: Driven) -> None:
    online.receive(
        protocol.deliver("bob", 1, 5, 7), protocol.deliver("bob", 2, 5), protocol.deliver("cy", 3, 5, 2**53)
    )
    assert confirmed(online) == [[7, 2**53]]
    assert online.sent_at[-1] == online.now
    online.receive(protocol.deliver("bob", 4, 5, 8))
    assert confirmed(online)[1:] == [[8]]
    online.receive(protocol.deliver("bob", 5, 5))
    assert len(confirmed(online)) == 2


def test_many_messages_are_confirmed_in_several_packets(online: Driven) -> None:
    online.receive(*(protocol.deliver("bob", None, 5, n) for n in range(2 * MAX_CONFIRMED + 1)))
    assert [len(numbers) for numbers in confirmed(online)] == [MAX_CONFIRMED, MAX_CONFIRMED, 1]
    assert [number for numbers in confirmed(online) for number in numbers] == [*range(2 * MAX_CONFIRMED + 1)]


def test_keepalives_go_on_as_before_beside_confirmations(online: Driven) -> None:
    for _ in range(4):
        online.receive(protocol.deliver("bob", 1, 5, 7))
        online.run(KEEPALIVE, answering=True)
    assert len([each for each in keepalives(online) if not each.payload]) == 4


@pytest.mark.parametrize("end", ["logout", "goodbye"])
def test_a_client_that_leaves_confirms_nothing(online: Driven, end: str) -> None:
    if end == "logout":
        online.machine.log_out(None, online.now)
        online.receive(protocol.deliver("bob", 1, 5, 7))
    else:
        online.receive(protocol.deliver("bob", 1, 5, 7), protocol.goodbye(Code.SERVER_DRAIN))
    online.run(5.0)
    assert confirmed(online) == []


def test_no_message_waits_for_the_answer_to_a_confirmed_one(online: Driven) -> None:
    online.ask(protocol.message("bob", 1, confirm=30), 40.0)
    ask_together(online, 2)
    assert [body for _, body in messages(online)] == [1, 2]


def test_a_confirmed_message_waits_for_those_before_it_and_holds_back_none_behind(online: Driven) -> None:
    online.ask(protocol.message("bob", 1), 5.0, retries=True)
    online.ask(protocol.message("bob", 2, confirm=30), 40.0)
    third, _ = ask_together(online, 3, 4)
    assert [body for _, body in messages(online)] == [1]
    online.run(5.0, answering=True)
    assert [body for _, body in messages(online)] == [2, 3], (
        "without an answer to the first, the third goes alone"
    )
    online.receive(protocol.ok(third, delivered=1))
    assert [body for _, body in messages(online)] == [4]


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


# Times of keepalives and reconnects


def most(_: object = None) -> float:
    return 1.0


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


def test_the_first_keepalive_is_spread_and_later_ones_are_early_and_never_late() -> None:
    chance = random.Random(1).random
    firsts = [Keepalives(12.0, ASK_EVERY, 100.0, chance).next_at - 100.0 for _ in range(1000)]
    assert 0 <= min(firsts) < 0.1
    assert 11.9 < max(firsts) <= 12
    keepalives = Keepalives(12.0, ASK_EVERY, 0.0, chance)
    gaps = []
    for _ in range(1000):
        now = keepalives.next_at
        keepalives.count_sent(now, chance)
        gaps.append(keepalives.next_at - now)
    assert min(gaps) >= 12 * (1 - KEEPALIVE_JITTER)
    assert max(gaps) <= 12
    assert max(gaps) - min(gaps) > 1


def test_any_received_packet_is_a_sign_of_life_and_an_answer_gives_the_round_trip() -> None:
    keepalives = Keepalives(12.0, 3, 0.0, most)
    keepalives.note_received(5.0)
    assert keepalives.dead_at == math.inf
    keepalives.expect_answer(5, 10.0)
    keepalives.note_received(20.0)
    assert keepalives.dead_at == 32.0
    keepalives.note_answered(20.25)
    assert (keepalives.round_trip_s, keepalives.dead_at) == (10.25, math.inf)


def test_the_time_for_an_answer_begins_when_the_keepalive_is_written() -> None:
    keepalives = Keepalives(12.0, 1, 0.0, most)
    keepalives.expect_answer(5, 10.0)
    assert not keepalives.is_dead(40.0), "the program was busy all the time"
    keepalives.note_written(40.01)
    assert not keepalives.is_dead(52.0)
    assert keepalives.is_dead(52.02)
    keepalives.note_answered(52.03)
    assert keepalives.round_trip_s == pytest.approx(12.02)


def test_a_keepalive_that_cannot_be_written_has_only_a_moment_more() -> None:
    keepalives = Keepalives(12.0, 1, 0.0, most)
    keepalives.expect_answer(5, 10.0)
    assert not keepalives.is_dead(22.0)
    assert not keepalives.is_dead(22.0 + WRITE_GRACE_S - 0.001)
    assert keepalives.is_dead(22.0 + WRITE_GRACE_S)


def test_a_server_cannot_make_its_client_flood() -> None:
    keepalives = Keepalives(1e-9, 3, 0.0, most)
    keepalives.count_sent(1.0, most)
    assert keepalives.next_at >= 1.0 + 0.02 * (1 - KEEPALIVE_JITTER)


# Another idle time-out


def test_a_shorter_idle_timeout_shortens_keepalives_when_asked_and_a_longer_one_when_granted(
    online: Driven,
) -> None:
    online.run(KEEPALIVE * 4, answering=True)
    for wish, before, after in ((60.0, KEEPALIVE, 24.0), (5.0, 2.0, 2.0), (1.0, 0.4, 2.0)):
        id = online.ask(protocol.update(idle_timeout=wish))
        assert online.machine.deadline - online.now <= before + 1e-6
        online.receive(protocol.ok(id, idle_timeout=after / 0.4, keepalive=after))
        assert online.answers[id] == {"idle_timeout": after / 0.4, "keepalive": after}
        sent = len(keepalives(online))
        online.run(10 * after, answering=True)
        assert 9 <= len(keepalives(online)) - sent <= 12, wish
    online.reconnect()
    logins = [packet for packet in online.sent if packet.kind == Kind.LOGIN]
    assert logins[-1].payload["idle_timeout"] == 1.0


def test_an_older_server_leaves_the_idle_timeout(online: Driven) -> None:
    id = online.ask(protocol.update(idle_timeout=60.0))
    online.receive(protocol.error(id, Code.UNSUPPORTED, "it holds from the login on"))
    assert isinstance(online.answers[id], Unsupported)
    online.reconnect()
    assert "idle_timeout" not in [p for p in online.sent if p.kind == Kind.LOGIN][-1].payload
