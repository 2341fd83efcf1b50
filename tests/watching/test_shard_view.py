"""What a node knows of watched users: rules whose violation `test_view_model.py` would not notice."""

import pytest

from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import ShardSnapshot, UserEvent, WatchedState
from tests.watching.fakes import device_entry, entry

ABSENCE_S = 40.0
OFFLINE = WatchedState("offline")


def snapshot(as_of: int, **states: WatchedState) -> ShardSnapshot:
    return ShardSnapshot(states, (as_of, 0))


def online(number: int) -> WatchedState:
    return entry("", number).state


class Watched(ShardView):
    """A connected view that is subscribed to some users."""

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
    changes_of(view, snapshot(10, **states), 0.0)
    return view


def changes_of(view: ShardView, snapshot: ShardSnapshot, now: float) -> list[UserEvent]:
    view.begin_snapshot(snapshot.states)
    return view.apply_snapshot(snapshot, now)


def test_an_entry_of_an_unwatched_user_is_ignored() -> None:
    assert known(ann=OFFLINE).receive(entry("bob", 11)) is None


def test_an_invalid_entry_id_counts_as_none() -> None:
    view = known(ann=WatchedState("online", 1, None, "no id"))
    assert view.current("ann") is not None
    assert changes_of(view, snapshot(11, ann=WatchedState("online", 1, None, "1-x")), 1.0) == []


def test_a_dropped_user_is_unsubscribed_and_forgotten() -> None:
    view = known(ann=online(5))
    view.drop("ann")
    assert view.current("ann") is None
    assert view.next_subscriptions(99) == ([], ["ann"])
    assert view.receive(entry("ann", 11)) is None
    view.unsubscribed("ann")
    assert len(view) == 0


def test_a_snapshot_does_not_count_after_a_loss() -> None:
    view = Watched("ann")
    view.begin_snapshot(["ann"])
    view.reconnect()
    view.apply_snapshot(snapshot(10, ann=OFFLINE), 0.0)
    assert view.current("ann") is None


def test_a_stream_is_read_from_the_last_position_of_the_channel() -> None:
    view = known(ann=online(5))
    view.receive(entry("ann", 12))
    assert view.position == (12, 0)
    view.caught_up((20, 0))
    view.lost()
    view.caught_up((30, 0))
    assert view.position == (20, 0)


def test_a_user_dropped_during_resubscription_is_not_waited_for() -> None:
    view = known(ann=online(5))
    view.lost()
    view.connected()
    view.drop("ann")
    assert view.phase is ViewPhase.LIVE


def test_an_old_snapshot_changes_nothing() -> None:
    view = known(ann=online(5))
    view.receive(entry("ann", 15, "away"))
    assert changes_of(view, snapshot(14, ann=online(5)), 0.0) == []
    assert changes_of(view, snapshot(14, ann=OFFLINE), 0.0) == []
    assert changes_of(view, snapshot(15, ann=entry("ann", 15, "away").state), 1.0) == []
    assert changes_of(view, snapshot(30, ann=OFFLINE), ABSENCE_S) == []


def test_two_snapshots_without_a_record_make_a_user_offline() -> None:
    view = known(ann=online(5))
    assert changes_of(view, snapshot(20, ann=OFFLINE), 1.0) == []
    assert changes_of(view, snapshot(20, ann=OFFLINE), ABSENCE_S) == []
    (change,) = changes_of(view, snapshot(21, ann=WatchedState("offline", None, 7)), 1.0 + ABSENCE_S)
    assert (change.id, change.state) == ((21, 0), WatchedState("offline", None, 7, "21-0"))


@pytest.mark.parametrize("by", ["snapshot", "channel"])
def test_a_user_seen_between_two_snapshots_is_not_absent(by: str) -> None:
    view = known(ann=online(5))
    changes_of(view, snapshot(20, ann=OFFLINE), 0.0)
    if by == "snapshot":
        changes_of(view, snapshot(21, ann=online(5)), 1.0)
    else:
        view.receive(entry("ann", 22))
    assert changes_of(view, snapshot(30, ann=OFFLINE), ABSENCE_S) == []


def deferred_then_recovered(*entries: UserEvent) -> list[UserEvent]:
    """Return the changes after entries that came while the missed ones were being read."""
    view = known(ann=online(5))
    view.reconnect()
    for each in entries:
        assert view.receive(each) is None
    return view.finish_recovery()


def test_a_deferred_device_event_does_not_hide_a_change_of_status_before_it() -> None:
    (change,) = deferred_then_recovered(
        entry("ann", 11, "away"), device_entry("ann", 12, "away", since_ms=11)
    )
    assert (change.state.status, change.reason, change.is_of_device) == ("away", "away", False)


def test_a_device_event_after_a_missed_change_is_a_change_for_all() -> None:
    view = known(ann=online(5))
    change = view.receive(device_entry("ann", 12, "away", since_ms=11))
    assert change is not None
    assert not change.is_of_device


def test_a_deferred_device_event_of_a_user_who_became_invisible_hides_them() -> None:
    gone = entry("ann", 11, "offline")
    device = device_entry("ann", 12, "offline", since_ms=11)._replace(state=gone.state)
    (change,) = deferred_then_recovered(gone, device)
    assert (change.state, change.is_of_device) == (gone.state, False)


def test_a_device_event_alone_is_none_for_watchers_without_devices() -> None:
    (change,) = deferred_then_recovered(device_entry("ann", 12, since_ms=5))
    assert change.is_of_device


def test_a_change_that_no_client_is_shown_is_not_pushed() -> None:
    """An update of `private` is an event, but is for the backend alone."""
    view = known(ann=online(5))
    same = entry("ann", 12)
    assert view.receive(same._replace(state=same.state._replace(since_ms=5))) is None
    assert view.receive(entry("ann", 11, "away")) is None, "it is older"
