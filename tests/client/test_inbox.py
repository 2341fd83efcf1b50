"""The queues of pushes are bounded, no message falls out silently, the newest state of each user is seen."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from presence.client import (
    Delivered,
    Disconnected,
    Dropped,
    PresenceChanged,
    Push,
    PushKind,
    UserState,
)
from presence.client.inbox import KINDS, MAX_CONNECTION_CHANGES, Inbox

LOST = Disconnected("closed", "", 1.0)


def change(uid: str, number: int) -> PresenceChanged:
    return PresenceChanged(uid, UserState("online", id=f"{number}-0"), "login")


def message(number: int) -> Delivered:
    return Delivered("bob", number, number)


def filled(max_messages: int, max_changes: int, *pushes: Push) -> Inbox:
    inbox = Inbox(max_messages, max_changes)
    for push in pushes:
        inbox.put(push)
    return inbox


def taken(inbox: Inbox) -> list[Push]:
    return list(iter(inbox.pop, None))


def test_a_superseded_change_is_dropped_silently() -> None:
    inbox = filled(2, 2, message(1), change("ann", 2), change("ann", 3), change("bob", 4), message(5))
    assert taken(inbox) == [message(1), change("ann", 3), change("bob", 4), message(5)]
    assert (inbox.superseded, inbox.dropped) == (1, 0)


def test_in_the_place_of_dropped_messages_is_their_number() -> None:
    inbox = filled(2, 9, change("ann", 1), *map(message, range(5)), change("eve", 2))
    assert taken(inbox) == [
        change("ann", 1),
        Dropped("messages", 3),
        message(3),
        message(4),
        change("eve", 2),
    ]


def test_without_superseded_changes_the_oldest_is_dropped_and_told() -> None:
    inbox = filled(9, 2, change("ann", 1), change("bob", 2), change("eve", 3), message(4))
    assert taken(inbox) == [Dropped("presence", 1), change("bob", 2), change("eve", 3), message(4)]
    assert (inbox.superseded, inbox.dropped) == (0, 1)


def test_changes_of_the_connection_have_a_bound_of_their_own() -> None:
    inbox = filled(1, 1, message(1), *[LOST] * (MAX_CONNECTION_CHANGES + 5))
    assert taken(inbox) == [message(1), Dropped("connection", 5), *[LOST] * MAX_CONNECTION_CHANGES]


def test_a_burst_of_changes_takes_no_place_from_messages() -> None:
    inbox = filled(3, 3, *map(message, range(3)), *(change(f"u{n}", n) for n in range(50)))
    assert [push for push in taken(inbox) if isinstance(push, Delivered)] == [*map(message, range(3))]


def test_what_is_dropped_after_a_read_is_told_again() -> None:
    inbox = filled(1, 1, message(1), message(2))
    assert inbox.pop() == Dropped("messages", 1)
    inbox.put(message(3))
    assert taken(inbox) == [Dropped("messages", 1), message(3)]
    assert inbox.dropped == 2


def test_a_kind_is_read_alone_and_what_was_read_is_gone() -> None:
    inbox = filled(9, 9, message(1), change("ann", 2), LOST, message(3))
    assert (inbox.pop("presence"), inbox.pop("presence")) == (change("ann", 2), None)
    assert inbox.pop("messages") == message(1)
    assert taken(inbox) == [LOST, message(3)]


def test_each_type_of_push_has_a_kind() -> None:
    assert set(KINDS) == set(get_args(Push)) - {Dropped}
    assert set(KINDS.values()) == set(get_args(PushKind))


def test_the_records_of_stale_changes_are_bounded() -> None:
    inbox = filled(10, 10, message(0))
    for number in range(1, 10_000):
        inbox.put(change("ann", number))
        if number > 1:
            inbox.pop()
    assert len(inbox._changes._stale) <= 20


@given(
    st.integers(1, 5), st.integers(1, 5), st.lists(st.one_of(st.none(), st.sampled_from("abcx")), max_size=60)
)
def test_no_message_is_missing_without_a_word_and_the_newest_state_of_each_user_is_seen(
    max_messages: int, max_changes: int, steps: list[str | None]
) -> None:
    inbox = Inbox(max_messages, max_changes)
    put: list[Push] = []
    seen: list[Push] = []
    for number, step in enumerate(steps):
        if step is None:
            if (push := inbox.pop()) is not None:
                seen.append(push)
        else:
            put.append(message(number) if step == "x" else change(step, number))
            inbox.put(put[-1])
        assert len(inbox) <= max_messages + max_changes + 2
    seen += taken(inbox)
    told = dict.fromkeys(("messages", "presence"), 0)
    for push in seen:
        if isinstance(push, Dropped):
            told[push.kind] += push.count
    given = [push for push in seen if not isinstance(push, Dropped)]
    assert given == [push for push in put if push in given], "in order, each once"
    for kind, silent in (("messages", 0), ("presence", inbox.superseded)):
        of_kind = [sum(KINDS[type(push)] == kind for push in pushes) for pushes in (put, given)]
        assert of_kind[0] == of_kind[1] + told[kind] + silent
    assert inbox.dropped == sum(told.values())
    if not told["presence"]:
        newest = {push.uid: push for push in put if isinstance(push, PresenceChanged)}
        assert all(push in seen for push in newest.values())
