"""Versions of rooms, and the rows that clients are sent."""

from collections.abc import Iterable

import pytest

from presence.watching.room_views import RoomOccupancy, RoomPush, WatchedRoom, whole_row
from tests.watching.fakes import session

ANN_BOB = RoomOccupancy(2, frozenset({"ann", "bob"}))
BOB_CY_DEE = RoomOccupancy(3, frozenset({"bob", "cy", "dee"}))


def push_of(before: RoomOccupancy, after: RoomOccupancy) -> RoomPush:
    """Return the push of a room that has changed."""
    room = WatchedRoom("lobby", 0.0)
    room.update(before)
    room.watchers[session()[0]] = room.version
    room.update(after)
    push = room.next_push()
    assert push is not None
    return push


def without_cy(uids: Iterable[str]) -> list[str]:
    return sorted({*uids} - {"cy"})


def test_a_session_that_is_one_behind_gets_the_difference() -> None:
    push = push_of(ANN_BOB, BOB_CY_DEE)
    assert push.row(is_next=True, shown=sorted) == ["lobby", 3, ["cy", "dee"], ["ann"]]
    assert push.row(is_next=True, shown=without_cy) == ["lobby", 3, ["dee"], ["ann"]]
    assert push.row(is_next=True, shown=None) == ["lobby", 3]


def test_a_session_that_is_further_behind_gets_the_whole_room() -> None:
    push = push_of(ANN_BOB, BOB_CY_DEE)
    assert push.row(is_next=False, shown=sorted) == ["lobby", 3, ["bob", "cy", "dee"]]
    assert push.row(is_next=False, shown=None) == ["lobby", 3]


def test_a_room_that_grows_or_shrinks_over_the_limit_is_pushed_as_a_whole() -> None:
    assert push_of(ANN_BOB, RoomOccupancy(201)).row(is_next=True, shown=sorted) == ["lobby", 201]
    assert push_of(RoomOccupancy(201), ANN_BOB).row(is_next=True, shown=sorted) == [
        "lobby",
        2,
        ["ann", "bob"],
    ]
    assert push_of(RoomOccupancy(2), ANN_BOB).row(is_next=True, shown=None) is None


def test_what_a_session_does_not_see_is_no_news_for_it() -> None:
    push = push_of(ANN_BOB, RoomOccupancy(2, frozenset({"bob", "dee"})))
    assert push.row(is_next=True, shown=None) is None
    assert push.row(is_next=True, shown=sorted) == ["lobby", 2, ["dee"], ["ann"]]
    assert push_of(RoomOccupancy(1), RoomOccupancy(2)).row(is_next=True, shown=sorted) == ["lobby", 2]
    unseen = push_of(RoomOccupancy(1, frozenset({"ann"})), RoomOccupancy(2, frozenset({"ann", "cy"})))
    assert unseen.row(is_next=True, shown=without_cy) == ["lobby", 2, [], []]


def test_a_version_rises_with_each_change_and_is_pushed_once() -> None:
    room = WatchedRoom("lobby", 0.0)
    assert room.update(ANN_BOB)
    assert not room.update(ANN_BOB)
    assert room.next_push() is None, "nobody watched it"
    room.watchers[session()[0]] = room.version
    for occupancy in (RoomOccupancy(9), BOB_CY_DEE):
        room.update(occupancy)
    push = room.next_push()
    assert push is not None
    assert (push.before_version, push.version, push.before) == (1, 3, ANN_BOB)
    assert room.next_push() is None
    assert room.update(ANN_BOB)


@pytest.mark.parametrize(
    ("occupancy", "row"),
    [
        (RoomOccupancy(0), ["lobby", 0]),
        (RoomOccupancy(0, frozenset()), ["lobby", 0, []]),
        (ANN_BOB, ["lobby", 2, ["ann", "bob"]]),
    ],
)
def test_a_whole_row_has_the_members_if_they_are_listed(occupancy: RoomOccupancy, row: list[object]) -> None:
    assert whole_row("lobby", occupancy, sorted) == row
    assert whole_row("lobby", occupancy, None) == row[:2]
