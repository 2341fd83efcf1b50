"""Versions of rooms, and the rows that tell them."""

from collections.abc import Iterable

import pytest

from presence.watching.room_views import RoomLook, RoomTelling, WatchedRoom, whole_row
from tests.watching.fakes import session

ANN_BOB = RoomLook(2, frozenset({"ann", "bob"}))
BOB_CY_DEE = RoomLook(3, frozenset({"bob", "cy", "dee"}))


def told(before: RoomLook, after: RoomLook) -> RoomTelling:
    """Return the telling of a room that has changed."""
    room = WatchedRoom("lobby", 0.0)
    room.update(before)
    room.watchers[session()[0]] = room.version
    room.update(after)
    telling = room.telling()
    assert telling is not None
    return telling


def without_cy(uids: Iterable[str]) -> list[str]:
    return sorted({*uids} - {"cy"})


def test_a_session_that_is_one_behind_gets_the_difference() -> None:
    telling = told(ANN_BOB, BOB_CY_DEE)
    assert telling.row(is_next=True, shown=sorted) == ["lobby", 3, ["cy", "dee"], ["ann"]]
    assert telling.row(is_next=True, shown=without_cy) == ["lobby", 3, ["dee"], ["ann"]]
    assert telling.row(is_next=True, shown=None) == ["lobby", 3]


def test_a_session_that_is_further_behind_gets_the_whole_room() -> None:
    telling = told(ANN_BOB, BOB_CY_DEE)
    assert telling.row(is_next=False, shown=sorted) == ["lobby", 3, ["bob", "cy", "dee"]]
    assert telling.row(is_next=False, shown=None) == ["lobby", 3]


def test_a_room_that_grows_or_shrinks_over_the_limit_is_told_as_a_whole() -> None:
    assert told(ANN_BOB, RoomLook(201)).row(is_next=True, shown=sorted) == ["lobby", 201]
    assert told(RoomLook(201), ANN_BOB).row(is_next=True, shown=sorted) == ["lobby", 2, ["ann", "bob"]]
    assert told(RoomLook(2), ANN_BOB).row(is_next=True, shown=None) is None


def test_what_a_session_does_not_see_is_no_news_for_it() -> None:
    telling = told(ANN_BOB, RoomLook(2, frozenset({"bob", "dee"})))
    assert telling.row(is_next=True, shown=None) is None
    assert telling.row(is_next=True, shown=sorted) == ["lobby", 2, ["dee"], ["ann"]]
    assert told(RoomLook(1), RoomLook(2)).row(is_next=True, shown=sorted) == ["lobby", 2]
    unseen = told(RoomLook(1, frozenset({"ann"})), RoomLook(2, frozenset({"ann", "cy"})))
    assert unseen.row(is_next=True, shown=without_cy) == ["lobby", 2, [], []]


def test_a_version_rises_with_each_change_and_is_told_once() -> None:
    room = WatchedRoom("lobby", 0.0)
    assert room.update(ANN_BOB)
    assert not room.update(ANN_BOB)
    assert room.telling() is None, "nobody watched it"
    room.watchers[session()[0]] = room.version
    for look in (RoomLook(9), BOB_CY_DEE):
        room.update(look)
    telling = room.telling()
    assert telling is not None
    assert (telling.before_version, telling.version, telling.before) == (1, 3, ANN_BOB)
    assert room.telling() is None
    assert room.update(ANN_BOB)


@pytest.mark.parametrize(
    ("look", "row"),
    [
        (RoomLook(0), ["lobby", 0]),
        (RoomLook(0, frozenset()), ["lobby", 0, []]),
        (ANN_BOB, ["lobby", 2, ["ann", "bob"]]),
    ],
)
def test_a_whole_row_has_the_members_if_they_are_listed(look: RoomLook, row: list[object]) -> None:
    assert whole_row("lobby", look, sorted) == row
    assert whole_row("lobby", look, None) == row[:2]
