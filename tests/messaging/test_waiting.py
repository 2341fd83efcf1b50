"""How many messages wait, and in which order they go out."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presence.core.registry import Session
from presence.messaging.letters import OutgoingMessage
from presence.messaging.queue import (
    CALL_BYTES,
    CALL_ITEMS,
    SECOND_LOOK_S,
    MessageQueue,
    PendingMessage,
    QueueBounds,
)
from tests.messaging.desks import Wire

NOW = 1000.0
MANY = QueueBounds(sender_items=2 * CALL_ITEMS)
ANN, BOB = (Session(Wire(), uid, uid, 1, 30.0, NOW, NOW) for uid in ("ann", "bob"))


def pending(to: str = "cy", *, size: int = 1, sender: Session = ANN, id: int = 0) -> PendingMessage:
    return PendingMessage(sender, id, OutgoingMessage(to, bytes(size)), NOW)


def waiting(*some: PendingMessage, bounds: QueueBounds | None = None) -> MessageQueue:
    waiting = MessageQueue(bounds or QueueBounds())
    for each in some:
        assert waiting.has_room(each.sender)
        waiting.add(each)
    return waiting


def taken(waiting: MessageQueue, now: float = NOW) -> list[tuple[str, int | None]]:
    return [(each.letter.to, each.id) for each in waiting.take(now)]


@pytest.mark.parametrize(
    ("bounds", "sizes", "others_may"),
    [
        (QueueBounds(items=2), [1, 1], False),
        (QueueBounds(bytes=10), [9, 1], False),
        (QueueBounds(sender_items=2), [1, 1], True),
    ],
)
def test_each_bound_holds_until_what_went_out_is_answered(
    bounds: QueueBounds, sizes: list[int], others_may: bool
) -> None:
    full = waiting(*(pending(size=size) for size in sizes), bounds=bounds)
    out = full.take(NOW)
    assert (full.has_room(ANN), full.has_room(BOB)) == (False, others_may)
    full.answered(out[1])
    assert full.has_room(ANN)


def test_a_call_takes_so_much_and_leaves_the_rest() -> None:
    queue = waiting(*(pending() for _ in range(CALL_ITEMS + 1)), bounds=MANY)
    assert [len(queue.take(NOW)) for _ in range(3)] == [CALL_ITEMS, 1, 0]
    queue = waiting(*(pending(size=CALL_BYTES // 4) for _ in range(6)))
    assert [len(queue.take(NOW)) for _ in range(2)] == [4, 2]


def test_a_call_that_is_full_keeps_what_was_put_off_in_order() -> None:
    queue = waiting(*(pending("x", id=id) for id in range(CALL_ITEMS)), bounds=MANY)
    queue.put_off(queue.take(NOW), NOW)
    queue.add(pending("x", id=CALL_ITEMS, sender=BOB))
    assert taken(queue) == []
    assert taken(queue, NOW + SECOND_LOOK_S) == [("x", id) for id in range(CALL_ITEMS)]
    assert taken(queue, NOW + SECOND_LOOK_S) == [("x", CALL_ITEMS)]


def answer(queue: MessageQueue, some: Iterable[PendingMessage]) -> list[tuple[Session, str, int | None]]:
    for each in some:
        queue.answered(each)
    return [(each.sender, each.letter.to, each.id) for each in some]


@given(st.lists(st.sampled_from(["ann", "bob", "found", "missed", "pass"]), max_size=60), st.data())
def test_whatever_happens_each_goes_out_until_it_is_answered_and_in_order(
    steps: list[str], data: st.DataObject
) -> None:
    queue, now, sent, out = MessageQueue(QueueBounds()), NOW, 0, []
    steps += ["pass", "found"] * 2
    for step in steps:
        if step == "pass":
            now += SECOND_LOOK_S
        elif step == "found":
            out += answer(queue, queue.take(now))
        elif step == "missed":
            batch = queue.take(now)
            missing = data.draw(st.sets(st.sampled_from(["x", "y"])))
            lost = [each for each in batch if each.letter.to in missing and not each.is_second_look]
            out += answer(queue, [each for each in batch if each not in lost])
            queue.put_off(lost, now)
        else:
            sent += 1
            to = data.draw(st.sampled_from(["x", "y"]))
            queue.add(pending(to, sender={"ann": ANN, "bob": BOB}[step], id=sent))
    assert len(out) == sent
    assert (queue.items, queue.bytes, queue._of_senders) == (0, 0, {})
    for sender in (ANN, BOB):
        for to in ("x", "y"):
            ids = [id or 0 for by, recipient, id in out if (by, recipient) == (sender, to)]
            assert ids == sorted(ids)
