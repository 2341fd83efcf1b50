"""How many messages wait, and in which order they go out."""

import math
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from presence.messaging.letters import Letter
from presence.messaging.waiting import CALL_BYTES, CALL_ITEMS, SECOND_LOOK_S, Bounds, Pending, Waiting
from presence.registry import Guest, Session
from tests.messaging.desks import Wire

NOW = 1000.0
MANY = Bounds(sender_items=2 * CALL_ITEMS)
ANN, BOB = (Session(Guest(Wire(), uid), uid, 1, 30.0, NOW) for uid in ("ann", "bob"))


def pending(to: str = "cy", *, size: int = 1, sender: Session = ANN, id: int = 0) -> Pending:
    return Pending(sender, id, Letter(to, bytes(size)), NOW)


def waiting(*some: Pending, bounds: Bounds | None = None) -> Waiting:
    waiting = Waiting(bounds or Bounds())
    for each in some:
        assert waiting.has_room(each.sender)
        waiting.add(each)
    return waiting


def taken(waiting: Waiting, now: float = NOW) -> list[tuple[str, int | None]]:
    return [(each.letter.to, each.id) for each in waiting.take(now)]


def test_a_number_of_messages_is_a_bound() -> None:
    assert not waiting(pending(), pending(), bounds=Bounds(items=2)).has_room(ANN)


def test_their_bytes_are_a_bound() -> None:
    assert waiting(pending(size=9), bounds=Bounds(bytes=10)).has_room(ANN)
    assert not waiting(pending(size=10), bounds=Bounds(bytes=10)).has_room(ANN)


def test_one_connection_cannot_fill_it_for_the_others() -> None:
    full = waiting(pending(), pending(), bounds=Bounds(sender_items=2))
    assert not full.has_room(ANN)
    assert full.has_room(BOB)


def test_what_went_out_counts_until_it_is_answered() -> None:
    full = waiting(pending(), bounds=Bounds(items=1, bytes=1, sender_items=1))
    (out,) = full.take(NOW)
    assert not full.has_room(ANN)
    full.answered(out)
    assert full.has_room(ANN)


def test_messages_go_out_in_the_order_in_which_they_came() -> None:
    queue = waiting(pending("x", id=1), pending("y", id=2), pending("x", id=3))
    assert taken(queue) == [("x", 1), ("y", 2), ("x", 3)]


def test_a_call_takes_so_many_and_leaves_the_rest() -> None:
    queue = waiting(*(pending() for _ in range(CALL_ITEMS + 1)), bounds=MANY)
    assert [len(queue.take(NOW)) for _ in range(3)] == [CALL_ITEMS, 1, 0]


def test_a_call_takes_so_many_bytes_and_leaves_the_rest() -> None:
    queue = waiting(*(pending(size=CALL_BYTES // 4) for _ in range(6)))
    assert [len(queue.take(NOW)) for _ in range(2)] == [4, 2]


def test_there_is_nothing_to_do_at_first_and_something_at_once_with_a_message() -> None:
    queue = waiting()
    assert queue.next_at() == math.inf
    queue.add(pending())
    assert queue.next_at() == -math.inf


def test_what_is_put_off_is_due_after_a_moment() -> None:
    queue = waiting(pending())
    queue.put_off(queue.take(NOW), NOW)
    assert queue.next_at() == NOW + SECOND_LOOK_S
    assert queue.take(NOW) == []
    (again,) = queue.take(NOW + SECOND_LOOK_S)
    assert again.is_second_look


def test_what_comes_later_for_the_same_recipient_goes_behind_it() -> None:
    queue = waiting(pending("x", id=1))
    queue.put_off(queue.take(NOW), NOW)
    queue.add(pending("x", id=2))
    queue.add(pending("y", id=3))
    assert taken(queue) == [("y", 3)]
    queue.add(pending("y", id=4))
    assert taken(queue, NOW + SECOND_LOOK_S) == [("x", 1), ("x", 2), ("y", 4)]


def test_a_call_that_is_full_keeps_what_was_put_off_in_order() -> None:
    queue = waiting(*(pending("x", id=id) for id in range(CALL_ITEMS)), bounds=MANY)
    queue.put_off(queue.take(NOW), NOW)
    queue.add(pending("x", id=CALL_ITEMS, sender=BOB))
    assert taken(queue) == []
    assert taken(queue, NOW + SECOND_LOOK_S) == [("x", id) for id in range(CALL_ITEMS)]
    assert taken(queue, NOW + SECOND_LOOK_S) == [("x", CALL_ITEMS)]


def answer(queue: Waiting, some: Iterable[Pending]) -> list[tuple[Session, str, int | None]]:
    for each in some:
        queue.answered(each)
    return [(each.sender, each.letter.to, each.id) for each in some]


@given(st.lists(st.sampled_from(["ann", "bob", "found", "missed", "pass"]), max_size=60), st.data())
def test_whatever_happens_each_goes_out_until_it_is_answered_and_in_order(
    steps: list[str], data: st.DataObject
) -> None:
    queue, now, sent, out = Waiting(Bounds()), NOW, 0, []
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
