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

    def silence_s(self) -> float:
        return self.observer.silence_s(self.other())

    def is_due(self, shard: int = 0) -> bool:
        return self.observer.due(self.other(), shard) is not None


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
    assert sight.observer.next_due_s() == pytest.approx(BEAT_S)
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
    sight.rows["ghost"] = LeaseRow("0 sweeper 1", "0", "sweeper", 1)  # is no sign of life
    sight.look()
    assert sight.observer.is_dead(sight.other("ghost"))
    assert not sight.observer.is_alive("ghost")
    sight.rows.clear()
    sight.traced.clear()
    sight.look()
    assert sight.observer.watched == {}
    assert sight.observer.is_alive("other")
    assert sight.observer.next_due_s() == math.inf


def fenced(sight: Sight, waited_s: float = T) -> None:
    sight.pass_time(LEASE_S)
    sight.observer.fenced(sight.other(), 0)
    sight.pass_time(waited_s)


def swept(sight: Sight, status: Status = Status.OK, **answer: object) -> None:
    sight.observer.swept(sight.other(), 0, Reply(status, "history", **answer))  # type: ignore[arg-type]  # as given


def test_a_shard_is_swept_no_sooner_than_t_after_its_fence_was_seen_in_bounded_calls(sight: Sight) -> None:
    fenced(sight, T - BEAT_S)
    assert not sight.is_due()
    sight.pass_time(BEAT_S)
    assert (sight.is_due(0), sight.is_due(1)) == (True, False)
    swept(sight, cursor="17", wait_ms=20_000)
    assert sight.other().shards[0].cursor == "17"
    assert sight.is_due()
    swept(sight, cursor="0", wait_ms=50_000)  # what is left for later is looked at when the first is due
    sight.pass_time(20 - BEAT_S)
    assert not sight.is_due()
    sight.pass_time(BEAT_S)
    assert sight.is_due()
    swept(sight, done=True)
    assert not sight.is_due()
    assert sight.observer.is_swept(sight.other(), 1)
    assert not sight.observer.is_swept(sight.other(), 2)


def test_a_sweeper_that_fell_behind_waits(sight: Sight) -> None:
    fenced(sight)
    swept(sight, Status.UNKNOWN)
    assert not sight.is_due()
    sight.pass_time(LEASE_S)
    assert sight.is_due()


@pytest.mark.parametrize("event", ["it woke", "the fence was lost"])
def test_who_is_fenced_no_more_must_be_fenced_and_waited_for_anew(sight: Sight, event: str) -> None:
    fenced(sight)
    if event == "it woke":
        sight.renew("other", 2)
        sight.look()
    else:
        swept(sight, Status.UNFENCED)
    assert sight.other().shards == {}
