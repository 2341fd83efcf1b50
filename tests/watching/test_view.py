"""What a node knows of watched users: rules that `test_view_model.py` would not notice to be broken."""

import pytest

from presence.watching.user_states import ShardSnapshot, UserEvent, WatchedState
from presence.watching.view import ShardView, ViewPhase
from tests.watching.fakes import entry

ABSENCE_S = 40.0
OFFLINE = WatchedState("offline")


def look(as_of: int, **states: WatchedState) -> ShardSnapshot:
    return ShardSnapshot(states, (as_of, 0))


def online(number: int) -> WatchedState:
    return entry("", number).state


class Watched(ShardView):
    """A view that is connected, and subscribed to some users."""

    def __init__(self, *uids: str) -> None:
        super().__init__(ABSENCE_S)
        self.connected()
        self.subscribe(*uids)

    def subscribe(self, *uids: str) -> None:
        for uid in uids:
            self.want(uid)
        ask, _ = self.next_subscriptions(99)
        for uid in ask:
            self.subscribed(uid)

    def reconnect(self) -> None:
        self.lost()
        self.connected()
        self.subscribe()


def known(**states: WatchedState) -> Watched:
    view = Watched(*states)
    told(view, look(10, **states), 0.0)
    return view


def told(view: ShardView, snapshot: ShardSnapshot, now: float) -> list[UserEvent]:
    view.begin_snapshot(snapshot.states)
    return view.apply_snapshot(snapshot, now)


def test_a_stranger_is_passed_over() -> None:
    assert known(ann=OFFLINE).receive(entry("bob", 11)) is None


def test_an_entry_id_that_no_server_wrote_is_none() -> None:
    view = known(ann=WatchedState("online", 1, None, "no id"))
    assert view.current("ann") is not None
    assert told(view, look(11, ann=WatchedState("online", 1, None, "1-x")), 1.0) == []


def test_who_is_dropped_is_left_and_forgotten() -> None:
    view = known(ann=online(5))
    view.drop("ann")
    assert view.current("ann") is None
    assert view.next_subscriptions(99) == ([], ["ann"])
    assert view.receive(entry("ann", 11)) is None
    view.unsubscribed("ann")
    assert len(view) == 0


def test_a_look_does_not_count_after_a_loss() -> None:
    view = Watched("ann")
    view.begin_snapshot(["ann"])
    view.reconnect()
    view.apply_snapshot(look(10, ann=OFFLINE), 0.0)
    assert view.current("ann") is None


def test_a_stream_is_read_from_where_the_channel_was_heard() -> None:
    view = known(ann=online(5))
    view.receive(entry("ann", 12))
    assert view.position == (12, 0)
    view.caught_up((20, 0))
    view.lost()
    view.caught_up((30, 0))
    assert view.position == (20, 0)


def test_who_is_dropped_while_all_are_subscribed_to_again_is_not_waited_for() -> None:
    view = known(ann=online(5))
    view.lost()
    view.connected()
    view.drop("ann")
    assert view.phase is ViewPhase.LIVE


def test_a_look_of_before_tells_nothing() -> None:
    view = known(ann=online(5))
    view.receive(entry("ann", 15, "away"))
    assert told(view, look(14, ann=online(5)), 0.0) == []
    assert told(view, look(14, ann=OFFLINE), 0.0) == []
    assert told(view, look(15, ann=entry("ann", 15, "away").state), 1.0) == []
    assert told(view, look(30, ann=OFFLINE), ABSENCE_S) == []


def test_two_looks_make_offline_who_has_no_record() -> None:
    view = known(ann=online(5))
    assert told(view, look(20, ann=OFFLINE), 1.0) == []
    assert told(view, look(20, ann=OFFLINE), ABSENCE_S) == []
    (change,) = told(view, look(21, ann=WatchedState("offline", None, 7)), 1.0 + ABSENCE_S)
    assert (change.id, change.state) == ((21, 0), WatchedState("offline", None, 7, "21-0"))


@pytest.mark.parametrize("by", ["look", "channel"])
def test_who_is_seen_between_two_looks_is_not_absent(by: str) -> None:
    view = known(ann=online(5))
    told(view, look(20, ann=OFFLINE), 0.0)
    if by == "look":
        told(view, look(21, ann=online(5)), 1.0)
    else:
        view.receive(entry("ann", 22))
    assert told(view, look(30, ann=OFFLINE), ABSENCE_S) == []
