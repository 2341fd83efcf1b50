"""The queue of pushes is bounded, and its reader sees the newest state of each user."""

from hypothesis import given
from hypothesis import strategies as st

from presence.client import Delivered, PresenceChanged, Push, UserState
from presence.client.pushes import Inbox


def change(uid: str, number: int) -> PresenceChanged:
    return PresenceChanged(uid, UserState("online", id=f"{number}-0"), "login")


def message(number: int) -> Delivered:
    return Delivered("bob", number, number)


def taken(inbox: Inbox) -> list[Push]:
    return [inbox.pop() for _ in range(len(inbox))]


def test_a_superseded_change_is_dropped_first() -> None:
    inbox = Inbox(3)
    for push in (message(1), change("ann", 2), change("ann", 3), message(4)):
        inbox.put(push)
    assert taken(inbox) == [message(1), change("ann", 3), message(4)]
    assert (inbox.superseded, inbox.dropped) == (1, 0)


def test_without_superseded_changes_the_oldest_push_is_dropped() -> None:
    inbox = Inbox(2)
    for push in (message(1), change("ann", 2), message(3)):
        inbox.put(push)
    assert taken(inbox) == [change("ann", 2), message(3)]
    assert (inbox.superseded, inbox.dropped) == (0, 1)


def test_the_records_of_stale_changes_are_bounded() -> None:
    inbox = Inbox(10)
    inbox.put(message(0))
    for number in range(1, 10_000):
        inbox.put(change("ann", number))
        if number > 1:
            inbox.pop()
    assert len(inbox._stale) <= 20


@given(st.integers(1, 5), st.lists(st.one_of(st.none(), st.sampled_from("abcx")), max_size=60))
def test_without_drops_the_newest_state_of_each_user_is_seen(most: int, steps: list[str | None]) -> None:
    inbox = Inbox(most)
    put: list[Push] = []
    seen: list[Push] = []
    for number, step in enumerate(steps):
        if step is None:
            if len(inbox):
                seen.append(inbox.pop())
        else:
            put.append(message(number) if step == "x" else change(step, number))
            inbox.put(put[-1])
        assert len(inbox) <= most
    seen += taken(inbox)
    assert len(seen) + inbox.dropped + inbox.superseded == len(put)
    assert seen == [push for push in put if push in seen], "in order, each once"
    if not inbox.dropped:
        newest = {push.uid: push for push in put if isinstance(push, PresenceChanged)}
        assert all(push in seen for push in newest.values())
