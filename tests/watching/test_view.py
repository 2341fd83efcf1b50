"""What a node knows of watched users: each rule by itself; `test_view_model.py` has them all together."""

import pytest

from presence.watching.states import NO_ENTRY, Entry, Snapshot, State
from presence.watching.view import Phase, View
from tests.watching.fakes import entry

ABSENCE_S = 40.0
OFFLINE = State("offline")


def look(as_of: int, **states: State) -> Snapshot:
    return Snapshot(states, (as_of, 0))


def online(number: int) -> State:
    return entry("", number).state


class Watched(View):
    """A view that is connected, and subscribed to some users."""

    def __init__(self, *uids: str) -> None:
        super().__init__(ABSENCE_S)
        self.connected()
        self.subscribe(*uids)

    def subscribe(self, *uids: str) -> None:
        for uid in uids:
            self.want(uid)
        ask, _ = self.orders(99)
        for uid in ask:
            self.confirmed(uid)

    def reconnect(self) -> None:
        self.lost()
        self.connected()
        self.subscribe()


def known(**states: State) -> Watched:
    view = Watched(*states)
    told(view, look(10, **states), 0.0)
    return view


def told(view: View, snapshot: Snapshot, now: float) -> list[Entry]:
    view.looking(snapshot.states)
    return view.looked(snapshot, now)


def test_who_is_wanted_is_subscribed_to_looked_at_and_known() -> None:
    view = View(ABSENCE_S)
    view.connected()
    view.want("ann")
    assert view.orders(99) == (["ann"], [])
    assert view.orders(99) == ([], []), "once"
    assert view.unseen(99) == []
    view.confirmed("ann")
    assert view.unseen(99) == ["ann"]
    assert view.answer("ann") is None
    assert told(view, look(3, ann=online(2)), 0.0) == []
    assert view.unseen(99) == []
    assert view.answer("ann") == online(2)


def test_what_the_look_contains_is_not_told() -> None:
    view = known(ann=OFFLINE)
    assert view.heard(entry("ann", 9)) is None
    assert view.heard(entry("ann", 10)) is None
    assert view.heard(entry("ann", 11)) == entry("ann", 11)
    assert view.heard(entry("ann", 11)) is None


def test_what_is_heard_before_the_look_is_there_is_in_the_answer() -> None:
    view = Watched("ann")
    view.heard(entry("ann", 11))
    view.heard(entry("ann", 12))
    told(view, look(10, ann=online(9)), 0.0)
    assert view.answer("ann") == online(12)


def test_a_stranger_is_passed_over() -> None:
    assert known(ann=OFFLINE).heard(entry("bob", 11)) is None


def test_an_entry_id_that_no_server_wrote_is_none() -> None:
    view = known(ann=State("online", 1, None, "no id"))
    assert view.answer("ann") is not None
    assert told(view, look(11, ann=State("online", 1, None, "1-x")), 1.0) == []


def test_who_is_dropped_is_left_and_forgotten() -> None:
    view = known(ann=online(5))
    view.drop("ann")
    assert view.answer("ann") is None
    assert view.orders(99) == ([], ["ann"])
    assert view.heard(entry("ann", 11)) is None
    view.left("ann")
    assert len(view) == 0


def test_who_is_dropped_before_the_subscription_stands_is_left_then() -> None:
    view = View(ABSENCE_S)
    view.connected()
    view.want("ann")
    view.orders(99)
    view.drop("ann")
    assert view.orders(99) == ([], [])
    view.confirmed("ann")
    assert view.orders(99) == ([], ["ann"])


def test_who_is_wanted_again_before_he_was_left_stays_known() -> None:
    view = known(ann=online(5))
    view.drop("ann")
    view.want("ann")
    assert view.orders(99) == ([], [])
    assert view.answer("ann") == online(5)


def test_who_is_wanted_again_while_he_is_left_is_subscribed_to_anew() -> None:
    view = known(ann=online(5))
    view.drop("ann")
    view.orders(99)
    view.want("ann")
    assert view.orders(99) == ([], [])
    view.left("ann")
    assert view.orders(99) == (["ann"], [])
    view.confirmed("ann")
    assert view.unseen(99) == ["ann"], "what happened between was not heard"


def test_a_look_does_not_count_for_who_was_left_and_subscribed_to_anew_meanwhile() -> None:
    view = Watched("ann")
    view.looking(["ann"])
    view.drop("ann")
    view.orders(99)
    view.want("ann")
    view.left("ann")
    view.subscribe()
    view.looked(look(10, ann=OFFLINE), 0.0)
    assert view.answer("ann") is None
    assert view.unseen(99) == ["ann"], "what happened between was not heard"


def test_a_look_does_not_count_for_who_was_not_heard_yet_when_it_began() -> None:
    view = known(bob=OFFLINE)
    view.want("ann")
    view.orders(99)
    view.looking(["ann", "bob"])
    view.confirmed("ann")
    (change,) = view.looked(look(20, ann=OFFLINE, bob=online(17)), 0.0)
    assert change.uid == "bob"
    assert view.answer("ann") is None
    assert view.unseen(99) == ["ann"]


def test_a_look_does_not_count_after_a_loss() -> None:
    view = Watched("ann")
    view.looking(["ann"])
    view.reconnect()
    view.looked(look(10, ann=OFFLINE), 0.0)
    assert view.answer("ann") is None


def test_after_a_loss_nothing_is_answered_before_it_is_made_good() -> None:
    view = known(ann=online(5), bob=OFFLINE)
    view.lost()
    assert view.answer("ann") is None
    view.connected()
    phases = [view.phase]
    assert view.orders(1) == (["ann"], [])
    view.confirmed("ann")
    phases.append(view.phase)
    view.subscribe()
    phases.append(view.phase)
    assert phases == [Phase.JOINING, Phase.JOINING, Phase.RECOVERING]
    assert view.answer("ann") is None
    view.recovered()
    assert view.answer("ann") == online(5)


def test_a_stream_is_read_from_where_the_channel_was_heard() -> None:
    view = known(ann=online(5))
    view.heard(entry("ann", 12))
    assert view.position == (12, 0)
    view.caught_up((20, 0))
    view.lost()
    view.caught_up((30, 0))
    assert view.position == (20, 0)


def test_what_is_heard_while_the_stream_is_read_comes_after_it() -> None:
    view = known(ann=online(5), bob=OFFLINE)
    view.reconnect()
    assert view.heard(entry("ann", 14)) is None
    assert view.position == NO_ENTRY, "or what others did before would be skipped"
    missed = [entry("ann", 11, "offline"), entry("bob", 12), entry("ann", 13)]
    assert view.replayed(missed, (13, 0)) == missed
    assert view.recovered() == [entry("ann", 14)]


def test_what_is_read_and_heard_is_told_once() -> None:
    view = known(ann=online(5))
    view.reconnect()
    view.heard(entry("ann", 11, "offline"))
    view.replayed([entry("ann", 11, "offline")], (11, 0))
    assert view.recovered() == []


def test_without_anybody_known_there_is_nothing_to_make_good() -> None:
    view = Watched("ann")
    view.reconnect()
    assert view.phase is Phase.LIVE


def test_who_is_dropped_while_all_are_subscribed_to_again_is_not_waited_for() -> None:
    view = known(ann=online(5))
    view.lost()
    view.connected()
    view.drop("ann")
    assert view.phase is Phase.LIVE


def test_a_look_tells_what_nobody_was_heard_of() -> None:
    view = known(ann=online(5))
    (change,) = told(view, look(20, ann=online(17)), 1.0)
    assert (change.id, change.state) == ((17, 0), online(17))
    assert view.statistics.corrected == 1
    assert told(view, look(20, ann=online(17)), 2.0) == []


def test_a_look_of_before_tells_nothing() -> None:
    view = known(ann=online(5))
    view.heard(entry("ann", 15, "away"))
    assert told(view, look(14, ann=online(5)), 0.0) == []
    assert told(view, look(14, ann=OFFLINE), 0.0) == []
    assert told(view, look(15, ann=entry("ann", 15, "away").state), 1.0) == []
    assert told(view, look(30, ann=OFFLINE), ABSENCE_S) == []


def test_two_looks_make_offline_who_has_no_record() -> None:
    view = known(ann=online(5))
    assert told(view, look(20, ann=OFFLINE), 1.0) == []
    assert told(view, look(20, ann=OFFLINE), ABSENCE_S) == []
    (change,) = told(view, look(21, ann=State("offline", None, 7)), 1.0 + ABSENCE_S)
    assert (change.id, change.state) == ((21, 0), State("offline", None, 7, "21-0"))


@pytest.mark.parametrize("by", ["look", "channel"])
def test_who_is_seen_between_two_looks_is_not_absent(by: str) -> None:
    view = known(ann=online(5))
    told(view, look(20, ann=OFFLINE), 0.0)
    if by == "look":
        told(view, look(21, ann=online(5)), 1.0)
    else:
        view.heard(entry("ann", 22))
    assert told(view, look(30, ann=OFFLINE), ABSENCE_S) == []


def after_data_were_lost() -> Watched:
    view = known(ann=online(5))
    view.heard(entry("ann", 15))
    view.reconnect()
    assert told(view, look(0, ann=OFFLINE), 0.0) == []
    view.recovered((0, 0))
    assert view.position == NO_ENTRY
    return view


def test_a_redis_that_lost_its_data_makes_nobody_offline_who_is_registered_again() -> None:
    view = after_data_were_lost()
    assert view.heard(entry("ann", 16)) == entry("ann", 16)
    assert told(view, look(0, ann=OFFLINE), ABSENCE_S) == []


def test_who_is_not_registered_again_after_data_were_lost_is_offline() -> None:
    view = after_data_were_lost()
    (change,) = told(view, look(0, ann=OFFLINE), ABSENCE_S)
    assert (change.id, change.state) == ((15, 1), State("offline", id="15-1"))
    assert view.heard(entry("ann", 16)) == entry("ann", 16)
