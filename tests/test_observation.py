"""Who is dead, by one node's own clock, in time by hand."""

import math

import pytest

from presence.observation import Contact, Observer, Watched
from presence.store.interface import LeaseRow
from presence.store.replies import Reply, Status

LEASE_S, T, BEAT_S = 10.0, 30.0, 1.25


class Sight:
    """An observer that looks at each beat; `rows` is what it sees."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rows: dict[str, LeaseRow] = {}
        self.traced: set[str] = set()
        self.contact = Contact(2 * BEAT_S)
        self.observer = Observer(LEASE_S, T, self.contact)

    def renew(self, node: str, counter: int) -> None:
        self.rows[node] = LeaseRow(str(counter), str(counter))

    def certify(self, node: str, sweeper: str, n: int) -> None:
        counter = self.rows[node].counter if node in self.rows else "0"
        self.rows[node] = LeaseRow(f"{counter} {sweeper} {n}", counter, sweeper, n)

    def look(self) -> None:
        self.contact.made(self.now)
        self.observer.saw(self.rows, self.traced, "me")

    def pass_time(self, seconds: float, *, contact: bool = True) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            if contact:
                self.look()

    def other(self, node: str = "other") -> Watched:
        return self.observer.watched[node]

    def silence_s(self, node: str = "other") -> float:
        return self.observer.silence_s(self.other(node))


@pytest.fixture
def sight() -> Sight:
    sight = Sight()
    sight.renew("other", 1)
    sight.look()
    return sight


def test_silence_is_a_counter_that_stands_still_and_dead_is_who_is_silent_for_long(sight: Sight) -> None:
    for counter in (*range(2, 20), 7):  # going back is a sign of life, too
        sight.renew("other", counter)
        sight.pass_time(BEAT_S)
    assert sight.silence_s() == 0.0
    sight.pass_time(LEASE_S - BEAT_S)
    assert sight.observer.lapsed() == []
    sight.pass_time(BEAT_S)
    assert sight.observer.lapsed() == [sight.other()]
    assert not sight.observer.is_alive("other")
    sight.pass_time(T - BEAT_S)
    assert not sight.observer.is_dead(sight.other())
    sight.pass_time(BEAT_S)
    assert sight.observer.is_dead(sight.other())


def test_an_outage_is_nobodys_silence_and_after_it_a_lease_of_contact_is_needed_to_act(sight: Sight) -> None:
    sight.pass_time(100)
    sight.renew("other", 2)
    sight.pass_time(LEASE_S / 2)
    silence_s = sight.silence_s()
    sight.pass_time(BEAT_S, contact=False)  # one answer late breaks no contact
    sight.look()
    assert sight.observer.may_act()
    sight.pass_time(3600, contact=False)
    sight.look()
    assert sight.silence_s() == pytest.approx(silence_s + BEAT_S)
    assert not sight.observer.may_act()
    sight.pass_time(LEASE_S - BEAT_S)
    assert not sight.observer.may_act()
    sight.pass_time(BEAT_S)
    assert sight.observer.may_act()


def test_it_watches_who_has_a_row_or_traces_and_never_itself(sight: Sight) -> None:
    sight.renew("me", 1)
    sight.traced |= {"me", "ghost"}
    sight.look()
    assert sight.observer.watched.keys() == {"other", "ghost"}
    sight.pass_time(LEASE_S + T)
    assert sight.observer.is_dead(sight.other("ghost"))
    sight.certify("ghost", "sweeper", 1)  # is no sign of life
    sight.look()
    assert sight.observer.is_dead(sight.other("ghost"))
    assert not sight.observer.is_alive("ghost")
    del sight.rows["other"], sight.rows["ghost"]
    sight.traced.clear()
    sight.look()
    assert sight.observer.watched == {}
    assert sight.observer.is_alive("other")


def test_a_sweeper_that_stops_leaves_an_orphan(sight: Sight) -> None:
    sight.pass_time(LEASE_S + T)
    for n in range(1, 20):
        sight.certify("other", "sweeper", n)
        sight.pass_time(BEAT_S)
    assert not sight.observer.is_orphan(sight.other())
    sight.pass_time(LEASE_S)
    assert sight.observer.is_orphan(sight.other())


def fenced(sight: Sight, shard: int = 0) -> None:
    sight.pass_time(LEASE_S)
    sight.observer.fenced(sight.other(), shard)


def test_a_shard_is_swept_no_sooner_than_t_after_its_fence_was_seen(sight: Sight) -> None:
    fenced(sight)
    sight.pass_time(T - BEAT_S)
    assert sight.observer.due(sight.other(), 0) is None
    sight.pass_time(BEAT_S)
    assert sight.observer.due(sight.other(), 0) is not None
    assert sight.observer.due(sight.other(), 1) is None


def test_a_node_that_woke_must_be_fenced_and_waited_for_anew(sight: Sight) -> None:
    fenced(sight)
    sight.renew("other", 2)
    sight.look()
    assert sight.other().shards == {}


def swept(**answer: object) -> Reply:
    return Reply(Status.OK, "history", **answer)  # type: ignore[arg-type]  # as given by each test


def test_a_sweep_goes_on_where_it_was(sight: Sight) -> None:
    fenced(sight)
    sight.pass_time(T)
    sight.observer.swept(sight.other(), 0, swept(cursor="17"))
    due = sight.observer.due(sight.other(), 0)
    assert due is not None
    assert due.cursor == "17"
    sight.observer.swept(sight.other(), 0, swept(done=True))
    assert sight.observer.due(sight.other(), 0) is None
    assert sight.observer.is_swept(sight.other(), 1)
    assert not sight.observer.is_swept(sight.other(), 2)


def test_what_is_left_for_later_is_looked_at_when_the_first_is_due(sight: Sight) -> None:
    fenced(sight)
    sight.pass_time(T)
    sight.observer.swept(sight.other(), 0, swept(cursor="17", wait_ms=20_000))
    sight.observer.swept(sight.other(), 0, swept(cursor="0", wait_ms=50_000))
    sight.pass_time(20 - BEAT_S)
    assert sight.observer.due(sight.other(), 0) is None
    sight.pass_time(BEAT_S)
    assert sight.observer.due(sight.other(), 0) is not None


def test_a_lost_fence_begins_all_over(sight: Sight) -> None:
    fenced(sight)
    sight.pass_time(T)
    sight.observer.swept(sight.other(), 0, Reply(Status.UNFENCED, "history"))
    assert sight.other().shards == {}


def test_a_sweeper_that_fell_behind_waits(sight: Sight) -> None:
    fenced(sight)
    sight.pass_time(T)
    sight.observer.swept(sight.other(), 0, Reply(Status.UNKNOWN, "history"))
    assert sight.observer.due(sight.other(), 0) is None
    sight.pass_time(LEASE_S)
    assert sight.observer.due(sight.other(), 0) is not None


def test_the_next_step_is_known_beforehand(sight: Sight) -> None:
    sight.pass_time(LEASE_S / 2)
    assert sight.observer.next_due_s() == pytest.approx(LEASE_S / 2)
    fenced(sight)
    assert sight.observer.next_due_s() == pytest.approx(LEASE_S + T - 1.5 * LEASE_S)
    del sight.rows["other"]
    sight.look()
    assert sight.observer.next_due_s() == math.inf
