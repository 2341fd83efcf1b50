"""Leases, failure detection, and the sweep of dead nodes, in virtual time."""

import contextlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.cluster.failure_detector import ContactClock, FailureDetector, PeerNode
from presence.cluster.lease_renewal import LeaseRenewal
from presence.cluster.lease_table import LeaseRow, LeaseTable
from presence.cluster.sweeper import ReindexingWalk
from presence.common.circuit_breaker import BACKOFF_FIRST_S
from presence.common.errors import StoreError, StoreUnavailable
from presence.outbox.event_counts import EventCount, Transitions
from presence.outbox.relay import Relay
from presence.outbox.replies import Reply, ReplyStatus
from presence.outbox.shard_peers import ShardPeers
from presence.outbox.steps import Counter, Fencing, Reindex, Step, Sweep
from presence.outbox.store import Store
from presence.protocol import Code
from presence.store.script_arguments import read_lease_row
from tests.support.waiting import InlineCallsRuntime

LEASE_S, IDLE_S = 2.0, 3.0
DEAD = "dead"
SESSIONS, ENDED = 7, 2  # of the dead node, and of those in each shard


class Claim(NamedTuple):
    """A change of a row."""

    kind: str
    node: str


ME = Counter("me", 1, 1)
KINDS = {Fencing: "fence", Sweep: "sweep"}


@dataclass
class Writer:
    """The part of a shard writer that the cluster uses."""

    shard: int
    settled: bool = True
    rollbacks: int = 0
    gate: Any = field(default_factory=lambda: SimpleNamespace(peers=ShardPeers(lambda _node: True)))

    def is_settled(self, _now: float) -> bool:
        return self.settled

    def fence_step(self, other: str) -> Fencing:
        return Fencing(self.shard, ME, "r", other)

    def sweep_step(self, other: str, cursor: str, waited_ms: int, latest_ms: int) -> Sweep:
        return Sweep(self.shard, ME, "r", other, cursor, waited_ms, latest_ms)

    def reindex_step(self, cursor: str, users: int) -> Reindex:
        return Reindex(self.shard, ME, "r", cursor, users)


@dataclass
class Redis:
    """Relay, lease table and store in one: a node has died, and every call succeeds."""

    writers: list[Writer] = field(default_factory=lambda: [Writer(0), Writer(1)])
    rows: dict[str, LeaseRow] = field(default_factory=lambda: {DEAD: LeaseRow("7", "7")})
    calls: list[Claim | Step] = field(default_factory=list)
    walk: list[Reindex] = field(default_factory=list)
    unreadable: tuple[str, ...] = ()
    refusing: set[int] = field(default_factory=set)  # shards that refuse the walk
    node: str = "me"
    former_ids: set[str] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    reports: list[str] = field(default_factory=list)
    transitions: Transitions = field(default_factory=Transitions)

    def is_reachable(self, writer: Writer) -> bool:
        return writer.shard not in self.away

    def renew(self, node: str, counter: int, report: str, *_: object) -> Mapping[str, LeaseRow]:
        self.reports.append(report)
        return {**self.rows, node: LeaseRow(str(counter), str(counter))}

    def claim(self, node: str, _seen: str, wanted: str) -> bool:
        self.calls.append(Claim("claim" if wanted else "bury", node))
        if wanted:
            self.rows[node] = read_lease_row(wanted, 0)
        else:
            del self.rows[node]
        return True

    def remove(self, node: str, seen: str) -> str:
        self.claim(node, seen, "")
        return json.dumps({"sessions": SESSIONS})

    def apply(self, steps: Sequence[Step]) -> list[Reply]:
        if walk := [each for each in steps if isinstance(each, Reindex)]:
            self.walk += walk
            if walk[0].shard in self.refusing:
                raise StoreError("WRONGTYPE")
            return [Reply(ReplyStatus.OK, "r", damaged=self.unreadable)]
        self.calls += steps
        counts = (EventCount("offline", Code.NODE_DOWN, ENDED),)
        return [
            Reply(ReplyStatus.OK, "r", cursor="0", done=True, ended=ENDED, event_counts=counts) for _ in steps
        ]

    @property
    def kinds(self) -> list[str]:
        return [each.kind if isinstance(each, Claim) else KINDS[type(each)] for each in self.calls]


@pytest.fixture
def redis() -> Redis:
    return Redis()


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def made(redis: Redis, *, healthy: bool = True) -> LeaseRenewal:
    return LeaseRenewal(
        cast(Relay, redis),
        cast(LeaseTable, redis),
        cast(Store, redis),
        lease_s=LEASE_S,
        idle_timeout_s=IDLE_S,
        is_healthy=lambda: healthy,
        describe=dict,
        clock=trio.current_time,
        runtime=InlineCallsRuntime(),
    )


async def live(redis: Redis, seconds: float) -> None:
    """Run a node for this time."""
    with trio.move_on_after(seconds):
        await made(redis).run()


async def test_dead_nodes_are_fenced_claimed_swept_and_removed(clock: MockClock, redis: Redis) -> None:
    await live(redis, LEASE_S + IDLE_S + 1)
    assert redis.kinds == ["fence", "fence", "claim", "sweep", "sweep", "bury"]
    assert redis.rows == {}


@pytest.mark.parametrize("has_left", [True, False], ids=["left", "died"])
async def test_a_node_that_left_is_swept_without_a_warning_and_each_sweep_logs_counts(
    clock: MockClock, redis: Redis, *, has_left: bool
) -> None:
    row = LeaseRow("7", "7")
    redis.rows[DEAD] = row.left_at(1_700_000_000_000) if has_left else row
    with capture_logs() as lines:
        await live(redis, LEASE_S + IDLE_S + 1)
    levels = [line["log_level"] for line in lines]
    assert levels == (["info"] * 3 if has_left else ["warning", "warning", "info"])
    assert lines[-1]["users_offline"] == 2 * ENDED
    assert lines[-1]["returned"] == SESSIONS - 2 * ENDED


async def test_a_node_that_leaves_is_marked_and_stops_renewing(clock: MockClock, redis: Redis) -> None:
    cluster = made(redis)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.run)
        await trio.sleep(LEASE_S)
        await cluster.leave(1_700_000_000_000, 40, 1.0)
        assert trio.current_time() < LEASE_S + 2, "it is marked immediately"
        await trio.sleep(LEASE_S)
    (claim,) = [each for each in redis.calls if isinstance(each, Claim)]
    assert claim == Claim("claim", redis.node)
    assert redis.rows[redis.node].left_ms == 1_700_000_000_000
    last = json.loads(redis.reports[-1])
    assert last["left_ms"] == 1_700_000_000_000
    assert last["sessions"] == 40, "sessions that moved elsewhere in the meantime count as returned"


async def test_an_unreachable_shard_does_not_delay_others(clock: MockClock, redis: Redis) -> None:
    redis.away = {0}
    await live(redis, LEASE_S + IDLE_S + 1)
    assert redis.kinds == ["fence", "claim", "sweep"], "and the row is not removed"
    assert {step.shard for step in redis.calls if isinstance(step, (Fencing, Sweep))} == {1}


@pytest.mark.parametrize("alive", [True, False])
async def test_a_sweeper_is_not_replaced_until_it_stops(
    clock: MockClock, redis: Redis, alive: bool, nursery: trio.Nursery
) -> None:
    redis.rows[DEAD] = LeaseRow("7 other 1", "7", "other", 1)

    async def sweep() -> None:
        while alive:
            await trio.sleep(LEASE_S / 2)
            n = redis.rows[DEAD].sweeper_n + 1
            redis.rows[DEAD] = LeaseRow(f"7 other {n}", "7", "other", n)

    nursery.start_soon(sweep)
    await live(redis, LEASE_S + IDLE_S + 1)
    assert redis.kinds == ["fence", "fence"] + ([] if alive else ["claim", "sweep", "sweep", "bury"])
    nursery.cancel_scope.cancel()


async def test_a_hanging_loop_lets_its_lease_expire(clock: MockClock, redis: Redis) -> None:
    with trio.move_on_after(2 * LEASE_S):
        await made(redis, healthy=False).run()
    assert (redis.reports, redis.calls) == ([], [])


async def test_failed_renewals_are_counted_and_repeated_after_a_pause(
    clock: MockClock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreUnavailable("away"), StoreError("NOPERM"), StoreUnavailable("away again")]
    renew, renewed_at = redis.renew, list[float]()

    def failing(node: str, counter: int, report: str, *more: object) -> Mapping[str, LeaseRow]:
        renewed_at.append(trio.current_time())
        if len(renewed_at) <= len(failures):
            raise failures[len(renewed_at) - 1]
        return renew(node, counter, report, *more)

    monkeypatch.setattr(redis, "renew", failing)
    cluster = made(redis)
    with trio.move_on_after(LEASE_S):
        await cluster.run()
    assert len(renewed_at) > len(failures)
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(renewed_at)]
    assert min(pauses_s) >= BACKOFF_FIRST_S / 2
    assert (cluster.statistics().errors, cluster.statistics().last_error) == (3, "away again")


async def test_no_node_is_claimed_too_early(clock: MockClock, redis: Redis) -> None:
    await live(redis, LEASE_S + IDLE_S - 0.1)
    assert redis.kinds == ["fence", "fence"]


@pytest.mark.parametrize("settled", [[False, False], [True, False]], ids=["nowhere", "in one shard"])
async def test_a_node_that_cannot_sweep_yet_does_not_claim(
    clock: MockClock, redis: Redis, settled: list[bool]
) -> None:
    for writer, is_settled in zip(redis.writers, settled, strict=True):
        writer.settled = is_settled
    await live(redis, 2 * (LEASE_S + IDLE_S))
    assert "claim" not in redis.kinds


async def test_a_sweeper_continues_after_a_resync(clock: MockClock, redis: Redis) -> None:
    redis.rows[DEAD] = LeaseRow("7 me 1", "7", "me", 1)
    redis.writers[1].settled = False
    await live(redis, LEASE_S + IDLE_S + 1)
    assert redis.kinds == ["fence", "sweep"]
    redis.writers[1].settled = True
    await live(redis, LEASE_S + IDLE_S + 1)
    assert redis.kinds[-1] == "bury"


async def test_a_refused_sweep_does_not_delay_others(clock: MockClock, redis: Redis) -> None:
    """The sweep of one shard keeps failing, or never ends."""
    redis.rows = {"bad": LeaseRow("7", "7"), "endless": LeaseRow("7", "7"), DEAD: LeaseRow("7", "7")}
    well = redis.apply

    def apply(steps: Sequence[Step]) -> list[Reply]:
        others = {step.other for step in steps if isinstance(step, Sweep)}
        if "bad" in others:
            raise StoreError("damaged")
        return [replace(each, done="endless" not in others) for each in well(steps)]

    redis.apply = apply  # type: ignore[method-assign]  # of this test
    with contextlib.suppress(StoreError):
        await live(redis, LEASE_S + IDLE_S + 2)
    assert DEAD not in redis.rows


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


async def test_one_node_walks_over_all_shards_again_and_again(clock: MockClock, redis: Redis) -> None:
    redis.rows = {"you": LeaseRow("1", "1")}
    await live(redis, LEASE_S + 4.5)
    shards = [each.shard for each in redis.walk]
    assert shards[:4] == [0, 1, 0, 1]
    redis.walk.clear()
    redis.rows = {"another": LeaseRow("1", "1")}  # with a lower id

    async def renew() -> None:
        for n in itertools.count(2):
            await trio.sleep(LEASE_S / 4)
            redis.rows["another"] = LeaseRow(str(n), str(n))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew)
        await live(redis, LEASE_S + 4.5)
        nursery.cancel_scope.cancel()
    assert redis.walk == []


async def test_a_shard_that_refuses_the_walk_does_not_keep_it_from_the_others(
    clock: MockClock, redis: Redis
) -> None:
    redis.rows, redis.refusing = {"you": LeaseRow("1", "1")}, {0}
    await live(redis, LEASE_S + 4.5)
    assert [each.shard for each in redis.walk][:4] == [0, 1, 0, 1]


def test_users_whose_records_stay_unreadable_are_reported_once() -> None:
    walk = ReindexingWalk(1)
    pages = [
        ("7", ["u"]),
        ("0", []),
        ("3", ["u", "v"]),
        ("0", []),
        ("0", ["u", "v"]),
        ("0", ["v"]),
    ]
    assert [walk.answered(*page) for page in pages] == [[], [], [], ["u"], ["v"], []]
