"""What a node knows of watched users: rules whose violation `test_view_model.py` would not notice."""

import pytest

from presence.watching.shard_view import ShardView, ViewPhase
from presence.watching.user_states import ShardSnapshot, UserEvent, WatchedState
from tests.watching.fakes import device_entry, entry, known_states

ABSENCE_S = 40.0
OFFLINE = WatchedState("offline")


def snapshot(as_of: int, **states: WatchedState) -> ShardSnapshot:
    return ShardSnapshot(states, (as_of, 0))


def online(number: int) -> WatchedState:
    return entry("", number).state


class Watched(ShardView):
    """A connected view that is subscribed to some users."""

    def __init__(self, *uids: str) -> None:
        super().__init__(known_states(), ABSENCE_S)
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
    assert not view.forget_dropped(99)
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
    return view.finish_recovery(99)


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


class Followed(ShardView):
    """A view that follows the whole shard, of which nothing is known yet."""

    def __init__(self, *uids: str) -> None:
        super().__init__(known_states(), ABSENCE_S)
        self.connected(whole=True)
        for uid in uids:
            self.want(uid)
        self.shard_joined()

    def hear(self, previous: int, *entries: UserEvent) -> list[UserEvent | None]:
        assert self.begin_changes((previous, 0))
        changes = [self.receive(each) for each in entries]
        self.end_changes(entries[-1].id)
        return changes


def followed(**states: WatchedState) -> Followed:
    """Return a view that follows the whole shard, and knows all as of entry 10."""
    view = Followed(*states)
    changes_of(view, snapshot(10, **states), 0.0)
    return view


def test_a_whole_shard_is_subscribed_to_once() -> None:
    assert followed(ann=OFFLINE).next_subscriptions(99) == ([], [])


def test_of_a_whole_shard_nothing_is_read_before_its_subscription_is_active() -> None:
    view = ShardView(known_states(), ABSENCE_S)
    view.want("ann")
    view.connected(whole=True)
    assert view.users_to_read(9) == []
    view.shard_joined()
    assert view.users_to_read(9) == ["ann"]


def test_a_message_that_follows_the_last_one_is_pushed_and_moves_the_position() -> None:
    view = followed(ann=OFFLINE)
    assert view.hear(10, entry("ann", 11), entry("bob", 12)) == [entry("ann", 11), None]
    assert view.hear(12, entry("ann", 15, "away")) == [entry("ann", 15, "away")]
    assert (view.phase, view.position) == (ViewPhase.LIVE, (15, 0))


def test_a_missing_entry_before_a_message_is_read_from_the_stream() -> None:
    view = followed(ann=OFFLINE)
    assert view.hear(11, entry("ann", 12, "away")) == [None]
    assert (view.phase, view.position, view.current("ann")) == (ViewPhase.RECOVERING, (10, 0), None)
    assert view.apply_replay([entry("ann", 11)], (11, 0)) == [entry("ann", 11)]
    assert view.finish_recovery(9) == [entry("ann", 12, "away")]
    assert (view.phase, view.position, view.statistics.gaps) == (ViewPhase.LIVE, (12, 0), 1)


def test_an_entry_that_nobody_published_is_missed_when_the_stream_is_checked() -> None:
    view = followed(ann=OFFLINE)
    view.caught_up((10, 0))
    assert view.phase is ViewPhase.LIVE
    view.caught_up((11, 0))
    assert (view.phase, view.position) == (ViewPhase.RECOVERING, (10, 0))


def test_a_second_gap_during_a_recovery_keeps_it_going() -> None:
    view = followed(ann=OFFLINE)
    view.hear(11, entry("ann", 12))
    view.apply_replay([entry("ann", 11)], (12, 0))
    view.hear(14, entry("ann", 15, "away"))
    assert view.has_gap
    view.finish_recovery(9)
    assert view.phase is ViewPhase.RECOVERING


def test_an_entry_between_the_first_read_and_a_message_is_missed() -> None:
    view = Followed("ann")
    view.begin_snapshot(["ann"])
    view.hear(11, entry("ann", 12))
    view.apply_snapshot(snapshot(10, ann=OFFLINE), 0.0)
    assert (view.phase, view.current("ann")) == (ViewPhase.RECOVERING, None)


def test_what_was_heard_in_one_piece_counts_after_the_first_read() -> None:
    view = Followed("ann")
    view.begin_snapshot(["ann"])
    view.hear(10, entry("ann", 12))
    assert view.apply_snapshot(snapshot(10, ann=OFFLINE), 0.0) == []
    assert (view.phase, view.position, view.current("ann")) == (ViewPhase.LIVE, (12, 0), online(12))


def test_a_message_of_which_a_part_was_applied_is_replayed() -> None:
    view = followed(ann=OFFLINE, bob=OFFLINE)
    view.begin_changes((10, 0))
    view.receive(entry("ann", 11))
    view.lost()
    assert view.position == (10, 0)


def test_a_known_user_is_recovered_in_the_other_way_of_following() -> None:
    view = known(ann=online(5))
    view.lost()
    view.connected(whole=True)
    phases = [view.phase]
    view.shard_joined()
    assert [*phases, view.phase] == [ViewPhase.JOINING, ViewPhase.RECOVERING]


def test_a_user_dropped_and_wanted_again_is_known_still() -> None:
    view = followed(ann=online(5))
    view.drop("ann")
    assert (view.current("ann"), len(view)) == (None, 0)
    view.want("ann")
    assert view.current("ann") == online(5)


def test_deferred_events_are_applied_a_few_at_a_time() -> None:
    view = followed(ann=OFFLINE, bob=OFFLINE)
    view.hear(11, entry("ann", 12), entry("bob", 13))
    view.apply_replay([], (11, 0))
    assert (view.finish_recovery(1), view.current("ann")) == ([entry("ann", 12)], None)
    assert (view.finish_recovery(1), view.current("ann")) == ([entry("bob", 13)], online(12))


def test_a_user_found_absent_is_read_again_when_that_decides() -> None:
    view = known(ann=online(5), bob=online(6))
    changes_of(view, snapshot(20, ann=OFFLINE), 1.0)
    changes_of(view, snapshot(20, bob=OFFLINE), 2.0)
    assert view.absent_since() == 1.0
    assert view.absent_users(1.0 + ABSENCE_S, 9) == ["ann"]
    changes_of(view, snapshot(21, ann=OFFLINE), 1.0 + ABSENCE_S)
    assert view.absent_since() == 2.0


def rereading() -> Followed:
    """Return a view that recovers from all records, because the stream does not reach back."""
    view = followed(ann=OFFLINE, bob=OFFLINE)
    view.hear(12, entry("ann", 13))
    view.is_rereading = True
    return view


def early(view: ShardView, snapshot: ShardSnapshot) -> list[UserEvent]:
    view.begin_snapshot(snapshot.states)
    return view.apply_snapshot(snapshot, 0.0, early=True)


def test_a_user_read_out_of_turn_is_current_while_the_view_recovers() -> None:
    view = rereading()
    view.want("cy")
    assert early(view, snapshot(14, cy=online(9))) == []
    assert (view.phase, view.current("cy"), view.current("bob")) == (
        ViewPhase.RECOVERING,
        online(9),
        None,
    )


def test_what_was_deferred_of_a_user_read_out_of_turn_is_pushed() -> None:
    view = rereading()
    assert early(view, snapshot(12, ann=OFFLINE)) == [entry("ann", 13)]


def test_while_all_records_are_read_again_events_are_applied_as_they_arrive() -> None:
    view = rereading()
    assert view.hear(13, entry("bob", 15)) == [entry("bob", 15)]
    assert changes_of(view, snapshot(16, bob=online(15)), 0.0) == []
    assert (view.position, view.apply_deferred(9)) == ((10, 0), [entry("ann", 13)])


def test_a_user_read_out_of_turn_is_not_current_after_another_gap() -> None:
    view = rereading()
    early(view, snapshot(14, ann=online(13)))
    view.hear(16, entry("bob", 17))
    assert view.current("ann") is None


def test_a_user_read_out_of_turn_is_not_current_after_a_loss() -> None:
    view = rereading()
    early(view, snapshot(14, ann=online(13)))
    view.lost()
    assert view.current("ann") is None


def test_what_was_heard_before_a_loss_is_no_gap_in_a_redis_that_counts_from_below() -> None:
    view = followed(ann=OFFLINE)
    view.hear(20, entry("ann", 21))
    view.lost()
    view.connected(whole=True)
    view.shard_joined()
    view.position = (3, 0)
    view.finish_recovery(9)
    assert view.phase is ViewPhase.LIVE


def test_a_user_wanted_before_a_whole_shard_is_subscribed_to_is_read_after_that() -> None:
    view = ShardView(known_states(), ABSENCE_S)
    view.connected(whole=True)
    view.want("ann")
    assert view.users_to_read(9) == []


def test_an_event_of_a_user_who_became_known_during_a_recovery_is_applied_after_it() -> None:
    view = followed(ann=OFFLINE)
    view.want("cy")
    view.begin_snapshot(["cy"])
    view.hear(11, entry("cy", 12))
    view.apply_snapshot(snapshot(11, cy=OFFLINE), 0.0)
    view.position = (11, 0)
    view.finish_recovery(9)
    assert view.current("cy") == online(12)


def test_a_read_does_not_count_for_a_user_who_was_dropped_during_it() -> None:
    view = Followed("ann")
    view.begin_snapshot(["ann"])
    view.drop("ann")
    view.forget_dropped(9)
    view.hear(10, entry("ann", 11))
    view.want("ann")
    view.apply_snapshot(snapshot(10, ann=OFFLINE), 0.0)
    assert (view.current("ann"), view.users_to_read(9)) == (None, ["ann"])
