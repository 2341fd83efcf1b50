"""The order of messages to a recipient that may return, and the confirmation of received ones."""

import pytest

from presence import protocol
from presence.client import (
    ConnectionLost,
    NotConnected,
    RecipientDisconnected,
    RequestTimeout,
)
from presence.client.message_lines import STEADY_S
from presence.client.session import (
    MAX_CONFIRMED,
    MESSAGE_RETRY_INTERVAL_S,
    MIN_MESSAGE_RETRY_S,
)
from presence.protocol import Code, Kind
from tests.client.machine_driver import KEEPALIVE, Driven, keepalives


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
