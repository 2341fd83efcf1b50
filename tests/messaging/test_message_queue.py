"""The queue of pending messages: limits, and the order in which they go out."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.core.registry import Session
from presence.messaging.message_bus import OutgoingMessage
from presence.messaging.message_queue import (
    MAX_BYTES_PER_CALL,
    MAX_ITEMS_PER_CALL,
    RETRY_DELAY_S,
    MessageQueue,
    PendingMessage,
    QueueBounds,
)
from presence.outbox import relay
from tests.messaging.desks import Wire

NOW = 1000.0
MANY = QueueBounds(sender_items=2 * MAX_ITEMS_PER_CALL)
ANN, BOB = (Session(Wire(), 0, uid, 1, 30.0, NOW, NOW) for uid in ("ann", "bob"))


def pending(to: str = "cy", *, size: int = 1, sender: Session = ANN, id: int = 0) -> PendingMessage:
    return PendingMessage(sender, id, OutgoingMessage(to, bytes(size)), NOW)


def waiting(*some: PendingMessage, bounds: QueueBounds | None = None) -> MessageQueue:
    waiting = MessageQueue(bounds or QueueBounds())
    for each in some:
        assert waiting.has_room(each.sender)
        waiting.add(each)
    return waiting


def taken(waiting: MessageQueue, now: float = NOW) -> list[tuple[str, int | None]]:
    return [(each.message.to, each.id) for each in waiting.next_batch(now)]


@pytest.mark.parametrize(
    ("bounds", "sizes", "others_may"),
    [
        (QueueBounds(items=2), [1, 1], False),
        (QueueBounds(bytes=10), [9, 1], False),
        (QueueBounds(sender_items=2), [1, 1], True),
    ],
)
def test_each_limit_holds_until_messages_in_flight_are_answered(
    bounds: QueueBounds, sizes: list[int], others_may: bool
) -> None:
    full = waiting(*(pending(size=size) for size in sizes), bounds=bounds)
    out = full.next_batch(NOW)
    assert (full.has_room(ANN), full.has_room(BOB)) == (False, others_may)
    full.remove(out[1])
    assert full.has_room(ANN)


def test_a_message_that_was_sent_leaves_its_place_and_counts_for_its_sender_until_it_is_answered() -> None:
    full = waiting(pending(size=9), pending(size=1), bounds=QueueBounds(items=2, bytes=10, sender_items=2))
    out = full.next_batch(NOW)
    full.sent(out[0])
    assert (full.items, full.bytes) == (1, 1)
    assert (full.has_room(ANN), full.has_room(BOB)) == (False, True)
    full.remove(out[0])
    assert (full.items, full.bytes, full.has_room(ANN)) == (1, 1, True)


def test_all_connections_of_a_user_share_the_limit_of_a_sender() -> None:
    phone = Session(Wire(), 0, ("ann", "phone"), 2, 30.0, NOW, NOW)
    full = waiting(pending(), pending(sender=phone), bounds=QueueBounds(sender_items=2))
    assert (full.has_room(ANN), full.has_room(phone), full.has_room(BOB)) == (False, False, True)


def test_a_call_takes_a_bounded_batch_and_leaves_the_rest() -> None:
    queue = waiting(*(pending() for _ in range(MAX_ITEMS_PER_CALL + 1)), bounds=MANY)
    assert [len(queue.next_batch(NOW)) for _ in range(3)] == [MAX_ITEMS_PER_CALL, 1, 0]
    queue = waiting(*(pending(size=MAX_BYTES_PER_CALL // 4) for _ in range(6)))
    assert [len(queue.next_batch(NOW)) for _ in range(2)] == [4, 2]


def test_deferred_messages_beyond_a_full_call_stay_in_order() -> None:
    queue = waiting(*(pending("x", id=id) for id in range(MAX_ITEMS_PER_CALL)), bounds=MANY)
    queue.retry_later(queue.next_batch(NOW), NOW)
    queue.add(pending("x", id=MAX_ITEMS_PER_CALL, sender=BOB))
    assert taken(queue) == []
    assert taken(queue, NOW + RETRY_DELAY_S) == [("x", id) for id in range(MAX_ITEMS_PER_CALL)]
    assert taken(queue, NOW + RETRY_DELAY_S) == [("x", MAX_ITEMS_PER_CALL)]


def test_the_second_try_comes_after_a_login_of_that_moment_has_reached_redis() -> None:
    assert RETRY_DELAY_S > relay.GATHER_S


def answer(queue: MessageQueue, some: Iterable[PendingMessage]) -> list[tuple[Session, str, int | None]]:
    for each in some:
        queue.remove(each)
    return [(each.sender, each.message.to, each.id) for each in some]


@given(st.lists(st.sampled_from(["ann", "bob", "found", "missed", "pass"]), max_size=60), st.data())
def test_each_message_is_sent_until_it_is_answered_and_in_order(
    steps: list[str], data: st.DataObject
) -> None:
    queue, now, sent, out = MessageQueue(QueueBounds()), NOW, 0, []
    steps += ["pass", "found"] * 2
    for step in steps:
        if step == "pass":
            now += RETRY_DELAY_S
        elif step == "found":
            out += answer(queue, queue.next_batch(now))
        elif step == "missed":
            batch = queue.next_batch(now)
            missing = data.draw(st.sets(st.sampled_from(["x", "y"])))
            lost = [each for each in batch if each.message.to in missing and not each.is_retry]
            out += answer(queue, [each for each in batch if each not in lost])
            queue.retry_later(lost, now)
        else:
            sent += 1
            to = data.draw(st.sampled_from(["x", "y"]))
            queue.add(pending(to, sender={"ann": ANN, "bob": BOB}[step], id=sent))
    assert len(out) == sent
    assert (queue.items, queue.bytes, queue._per_sender) == (0, 0, {})
    for sender in (ANN, BOB):
        for to in ("x", "y"):
            ids = [id or 0 for by, recipient, id in out if (by, recipient) == (sender, to)]
            assert ids == sorted(ids)
