"""Failure detection: which nodes are dead, and which steps against them are due."""

import math

import pytest

from presence.cluster.failure_detector import ContactClock, FailureDetector, PeerNode
from presence.cluster.lease_table import LeaseRow
from presence.outbox.replies import Reply, ReplyStatus

LONG_LEASE_S, T, BEAT_S = 10.0, 30.0, 1.25


class Sight:
    """A failure detector that observes each beat; `rows` is the table that it sees."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rows: dict[str, LeaseRow] = {}
        self.traced: set[str] = set()
        self.contact = ContactClock(2 * BEAT_S)
        self.detector = FailureDetector(LONG_LEASE_S, T, self.contact)

    def renew(self, node: str, counter: int) -> None:
        self.rows[node] = LeaseRow(str(counter), str(counter))

    def look(self) -> None:
        self.contact.answered(self.now)
        self.detector.observe(self.rows, self.traced, "me")

    def pass_time(self, seconds: float, *, contact: bool = True) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now += BEAT_S
            if contact:
                self.look()

    def other(self, node: str = "other") -> PeerNode:
        return self.detector.peers[node]

    def silence_s(self) -> float:
        return self.detector.silence_s(self.other())

    def is_due(self, shard: int = 0) -> bool:
        return self.detector.due_sweep(self.other(), shard) is not None


@pytest.fixture
def sight() -> Sight:
    sight = Sight()
    sight.renew("other", 1)
    sight.look()
    return sight


def test_an_unchanged_counter_is_silence_and_long_silence_is_death(sight: Sight) -> None:
    for counter in (*range(2, 20), 7):  # a counter that goes back is a sign of life, too
        sight.renew("other", counter)
        sight.pass_time(BEAT_S)
    assert sight.silence_s() == 0.0
    sight.pass_time(LONG_LEASE_S - BEAT_S)
    assert sight.detector.expired() == []
    assert sight.detector.next_due_s() == pytest.approx(BEAT_S)
    sight.pass_time(BEAT_S)
    assert sight.detector.expired() == [sight.other()]
    assert not sight.detector.is_alive("other")
    sight.pass_time(T - BEAT_S)
    assert not sight.detector.is_dead(sight.other())
    sight.pass_time(BEAT_S)
    assert sight.detector.is_dead(sight.other())


def test_an_outage_is_no_silence_and_acting_after_it_needs_a_lease_of_contact(sight: Sight) -> None:
    sight.pass_time(100)
    sight.renew("other", 2)
    sight.pass_time(LONG_LEASE_S / 2)
    silence_s = sight.silence_s()
    sight.pass_time(BEAT_S, contact=False)  # one late answer does not break the contact
    sight.look()
    assert sight.detector.may_act()
    sight.pass_time(3600, contact=False)
    sight.look()
    assert sight.silence_s() == pytest.approx(silence_s + BEAT_S)
    assert not sight.detector.may_act()
    sight.pass_time(LONG_LEASE_S - BEAT_S)
    assert not sight.detector.may_act()
    sight.pass_time(BEAT_S)
    assert sight.detector.may_act()


def test_peers_are_all_other_nodes_with_a_row_or_traces(sight: Sight) -> None:
    sight.renew("me", 1)
    sight.traced |= {"me", "ghost"}
    sight.look()
    assert sight.detector.peers.keys() == {"other", "ghost"}
    sight.pass_time(LONG_LEASE_S + T)
    assert sight.detector.is_dead(sight.other("ghost"))
    sight.rows["ghost"] = LeaseRow("0 sweeper 1", "0", "sweeper", 1)  # no sign of life
    sight.look()
    assert sight.detector.is_dead(sight.other("ghost"))
    assert not sight.detector.is_alive("ghost")
    sight.rows.clear()
    sight.traced.clear()
    sight.look()
    assert sight.detector.peers == {}
    assert sight.detector.is_alive("other")
    assert sight.detector.next_due_s() == math.inf


def fenced(sight: Sight, waited_s: float = T) -> None:
    sight.pass_time(LONG_LEASE_S)
    sight.detector.fence_seen(sight.other(), 0, rollbacks=1)
    sight.pass_time(waited_s)


def swept(sight: Sight, status: ReplyStatus = ReplyStatus.OK, **answer: object) -> None:
    sight.detector.sweep_answered(sight.other(), 0, Reply(status, "history", **answer))  # type: ignore[arg-type]  # as given


def test_a_shard_is_swept_no_sooner_than_t_after_its_fence_was_seen_in_bounded_calls(sight: Sight) -> None:
    fenced(sight, T - BEAT_S)
    assert not sight.is_due()
    sight.pass_time(BEAT_S)
    assert (sight.is_due(0), sight.is_due(1)) == (True, False)
    swept(sight, cursor="17", wait_ms=20_000)
    assert sight.other().shards[0].cursor == "17"
    assert sight.is_due()
    swept(sight, cursor="0", wait_ms=50_000)  # the rest is looked at when the first is due
    sight.pass_time(20 - BEAT_S)
    assert not sight.is_due()
    sight.pass_time(BEAT_S)
    assert sight.is_due()
    swept(sight, done=True)
    assert not sight.is_due()
    assert sight.detector.is_swept(sight.other(), 1)
    assert not sight.detector.is_swept(sight.other(), 2)


def test_the_next_step_is_due_when_the_rest_of_a_shard_is(sight: Sight) -> None:
    fenced(sight)
    swept(sight, cursor="0", wait_ms=20_000)
    assert sight.detector.next_due_s() == pytest.approx(20)
    swept(sight, done=True)
    assert sight.detector.next_due_s() == math.inf


def test_a_refused_sweep_is_tried_again_later(sight: Sight) -> None:
    fenced(sight)
    swept(sight, ReplyStatus.UNKNOWN)
    assert not sight.is_due()
    sight.pass_time(LONG_LEASE_S)
    assert sight.is_due()


@pytest.mark.parametrize("event", ["it woke", "the fence was lost"])
def test_a_lost_fence_starts_the_wait_again(sight: Sight, event: str) -> None:
    fenced(sight)
    if event == "it woke":
        sight.renew("other", 2)
        sight.look()
    else:
        swept(sight, ReplyStatus.UNFENCED)
    assert sight.other().shards == {}


def test_a_fence_that_another_node_set_anew_after_a_loss_starts_the_wait_again(sight: Sight) -> None:
    fenced(sight)
    sight.detector.forget_lost_fences(0, rollbacks=1)
    assert sight.is_due()
    sight.detector.forget_lost_fences(1, rollbacks=2)  # another shard
    assert sight.is_due()
    sight.detector.forget_lost_fences(0, rollbacks=2)
    assert sight.other().shards == {}
