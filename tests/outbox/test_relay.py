"""The relay with a small fake store, in mock time, and once with a real server."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from presence.common.errors import StoreError, StoreMismatch, StoreUnavailable
from presence.common.runtime import TrioWakeEvent
from presence.core.changes import Change, Op
from presence.outbox.backlog import MAX_PLANNED_PER_CALL
from presence.outbox.batches import BATCH_ITEMS
from presence.outbox.end_gate import CATCH_UP_DELAY_S, MIN_OUTAGE_S
from presence.outbox.queue import Outbox
from presence.outbox.reconciler import LocalSessions
from presence.outbox.relay import (
    FEW_ITEMS,
    GATHER_ITEMS,
    GATHER_S,
    PROBE_INTERVAL_S,
    SHORT_GATHER_S,
    Relay,
    RelayCallbacks,
)
from presence.outbox.replies import (
    CounterSnapshot,
    NodeNotice,
    NodeNoticeKind,
    Opened,
    Probe,
    Reply,
    ReplyStatus,
)
from presence.outbox.steps import FENCE_TTL_S, Batch, Counter, Step
from tests.support.waiting import InlineCallsRuntime, until

NOTHING = LocalSessions(lambda: (), lambda _name: None)


class FakeStore:
    """Counters and applied items in memory.

    Attributes:
        fail: the error of all calls while it is set.
        away, refusing: shards whose calls fail, or are refused.
    """

    def __init__(self) -> None:
        self.fail: StoreUnavailable | StoreError | None = None
        self.away: set[int] = set()
        self.refusing: set[int] = set()
        self.meta_away = False
        self.answers: list[StoreUnavailable | StoreError] = []  # for the next steps
        self.counters: dict[int, Counter] = {}
        self.fenced: set[str] = set()
        self.room = BATCH_ITEMS  # of a batch, in items
        self.large = ""  # a user whose record is too large for others beside it
        self.applied: list[Change] = []
        self.batches: list[Batch] = []
        self.probed: list[int] = []  # shards
        self.now_ms = 0  # of the shards
        self.inboxes: dict[int, list[NodeNotice]] = {}  # of the node, by shard
        self.checks = 0
        self.hangs: Callable[[], None] = lambda: None  # called with each call but those that apply steps

    def check_meta(self, shards: Collection[int] = ()) -> None:
        self.hangs()
        self._fail()
        if self.meta_away:
            raise StoreUnavailable("away")
        self.checks += 1

    def _fail(self) -> None:
        if self.fail is not None:
            raise self.fail

    def apply(self, steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        if self.fail is not None:
            return [self.fail for _ in steps]
        return [self.answers.pop(0) if self.answers else self._reply(step) for step in steps]

    def _reply(self, step: Step) -> Reply | StoreUnavailable:
        if step.shard in self.away:
            return StoreUnavailable("away")
        if step.counter.node in self.fenced:
            return Reply(ReplyStatus.FENCED, "history")
        if not isinstance(step, Batch):
            return Reply(ReplyStatus.OK, "history")
        present = self.counters.get(step.shard)
        opened = None
        if step.opening:
            opened = Opened((CounterSnapshot(present or Counter(step.opening.before, 0, 0)),), {})
        elif present is None or present.n + 1 != step.counter.n:
            return Reply(ReplyStatus.UNKNOWN, "history")
        elif len(step.items) > (room := 1 if _is_of(self.large, step) else self.room):
            return Reply(ReplyStatus.HEAVY, "history", fitting=room)
        self.counters[step.shard] = step.counter
        self.batches.append(step)
        self.applied += [item.change for item in step.items]
        return Reply(ReplyStatus.OK, "history", opened=opened)

    def probe(
        self, node: str, inbox_read: Mapping[int, int]
    ) -> dict[int, Probe | StoreUnavailable | StoreError]:
        self.hangs()
        if self.fail is not None:
            return dict.fromkeys(inbox_read, self.fail)
        self.probed += inbox_read
        none = Counter(node, 0, 0)
        failures: dict[int, Probe | StoreUnavailable | StoreError] = {
            **dict.fromkeys(self.away, StoreUnavailable("away")),
            **{shard: StoreError(f"NOPERM in {shard}") for shard in self.refusing},
        }
        return {
            s: failures.get(s)
            or Probe(
                s,
                "history",
                node in self.fenced,
                self.counters.get(s, none),
                "0-0",
                {},
                len(self.inboxes.get(s, [])),
                tuple(self.inboxes.get(s, [])[inbox_read[s] :]),
                self.now_ms,
            )
            for s in inbox_read
        }

    def close(self) -> None:
        """Nothing is open."""


def _is_of(uid: str, batch: Batch) -> bool:
    return any(item.change.uid == uid for item in batch.items)


def login(uid: str, session: str = "s") -> Change:
    return Change(Op.LOGIN, uid, "", session, 1, 0.0, 1000, 1000, 30_000)


class Relaying:
    """A relay of some shards, by the last digit of uids; without one, of shard 0."""

    def __init__(self, *, shards: int = 3, **more: Any) -> None:
        self.fake, ids = FakeStore(), iter(["second", "third"])
        self.outbox = Outbox(lambda uid: int(uid[-1]) if uid[-1] in "12" else 0, shards, max_items=10_000)
        usual: dict[str, Any] = {
            "node": "first",
            "live": lambda _shard: [],
            "callbacks": RelayCallbacks(lambda _: None, lambda _: None, lambda: next(ids)),
            "local_sessions": NOTHING,
            "clock": trio.current_time,
            "runtime": InlineCallsRuntime(),
        }
        self.relay = Relay(self.outbox, self.fake, **usual | more)

    async def run(self, nursery: trio.Nursery) -> "Relaying":
        """Run it; return when all shards are opened."""
        nursery.start_soon(self.relay.run)
        await until(lambda: len(self.fake.counters) == 3)
        return self

    @property
    def applied(self) -> list[str]:
        return [change.uid for change in self.fake.applied]

    @property
    def connected(self) -> bool:
        return self.relay.statistics().connected


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@pytest.fixture
async def relaying(nursery: trio.Nursery) -> Relaying:
    """A running relay, a second after all shards were opened."""
    relaying = await Relaying().run(nursery)
    await trio.sleep(1)
    return relaying


def end(uid: str, code: int = 201) -> Change:
    return login(uid)._replace(op=Op.END, code=code)


# Start


async def test_a_start_needs_one_shard_and_no_refusal(clock: MockClock, nursery: trio.Nursery) -> None:
    relaying = Relaying()
    fake = relaying.fake
    for failure in (StoreUnavailable("away"), StoreMismatch("16 shards, not 1")):
        fake.fail = failure
        with pytest.raises(type(failure)):
            await relaying.relay.start()
    fake.fail, fake.away = None, {0, 1, 2}
    with pytest.raises(StoreUnavailable):
        await relaying.relay.start()
    fake.away, fake.refusing = set(), {2}
    with pytest.raises(StoreError):
        await relaying.relay.start()
    fake.away, fake.refusing = {2}, set()
    await relaying.relay.start()
    assert fake.checks
    nursery.start_soon(relaying.relay.run)
    relaying.outbox.extend([login("u2"), login("u0")])
    await until(lambda: fake.applied)
    assert not relaying.connected
    fake.away = set()
    await until(lambda: len(fake.applied) == 2)


# Batches


async def test_a_change_after_a_pause_is_sent_immediately_and_those_after_it_share_a_batch(
    clock: MockClock, relaying: Relaying
) -> None:
    await trio.sleep(GATHER_S)
    relaying.outbox.append(login("u"))
    await trio.sleep(GATHER_S / 8)
    assert len(relaying.applied) == 1
    before = len(relaying.fake.batches)
    for number in range(3):
        relaying.outbox.append(login(f"u{number}0"))
        await trio.sleep(GATHER_S / 8)
    assert len(relaying.applied) == 1
    await trio.sleep(GATHER_S)
    assert (len(relaying.applied), len(relaying.fake.batches)) == (4, before + 1)


@pytest.mark.parametrize(
    ("hurried", "items", "sent"),
    [
        (True, 1, True),
        (True, FEW_ITEMS, True),
        (True, FEW_ITEMS + 1, False),
        (True, GATHER_ITEMS - 1, False),
        (False, 1, False),
    ],
)
async def test_where_users_watch_others_a_few_changes_gather_for_half_the_time(
    clock: MockClock, relaying: Relaying, hurried: bool, items: int, sent: bool
) -> None:
    relaying.relay.is_hurried = lambda: hurried
    await trio.sleep(GATHER_S)
    relaying.outbox.append(login("first0"))
    await trio.sleep(SHORT_GATHER_S / 2)
    relaying.outbox.extend([login(f"u{number}0") for number in range(items)])
    await trio.sleep(SHORT_GATHER_S / 4)
    assert len(relaying.applied) == 1
    await trio.sleep(SHORT_GATHER_S / 2)
    assert (len(relaying.applied) > 1) == sent
    await trio.sleep(SHORT_GATHER_S)
    assert len(relaying.applied) == 1 + items


async def test_where_users_watch_others_a_change_after_half_the_time_is_sent_immediately(
    clock: MockClock, relaying: Relaying
) -> None:
    relaying.relay.is_hurried = lambda: True
    await trio.sleep(GATHER_S)
    relaying.outbox.append(login("first0"))
    await trio.sleep(SHORT_GATHER_S * 1.25)
    relaying.outbox.append(login("u0"))
    await trio.sleep(SHORT_GATHER_S / 8)
    assert len(relaying.applied) == 2


async def test_crowds_of_changes_share_batches(clock: MockClock, relaying: Relaying) -> None:
    before = len(relaying.fake.batches)
    for i in range(100):
        relaying.outbox.append(end(f"u{i}0", 100))
        await trio.sleep(0.01)
    await until(lambda: len(relaying.applied) == 100)
    assert len(relaying.fake.batches) - before <= 1 + 1.1 / GATHER_S


async def test_a_crowd_of_changes_is_sent_sooner(clock: MockClock, relaying: Relaying) -> None:
    relaying.outbox.append(end("first0", 100))
    await until(lambda: len(relaying.applied) == 1)
    relaying.outbox.extend([end(f"u{i}0", 100) for i in range(GATHER_ITEMS)])
    await trio.sleep(GATHER_S / 4)
    assert len(relaying.applied) == 1 + GATHER_ITEMS


async def test_the_answer_of_a_small_batch_is_read_when_changes_have_gathered(
    clock: MockClock, relaying: Relaying
) -> None:
    """The relay wakes once for it and for the next batch."""
    await trio.sleep(GATHER_S)
    relaying.outbox.append(login("u"))
    await trio.sleep(GATHER_S / 8)
    assert (relaying.applied, relaying.outbox.pending) == (["u"], 1)
    await trio.sleep(GATHER_S)
    assert relaying.outbox.pending == 0


async def test_the_answer_of_a_full_batch_is_read_immediately(clock: MockClock, relaying: Relaying) -> None:
    await trio.sleep(GATHER_S)
    relaying.outbox.extend([login(f"u{number}0") for number in range(BATCH_ITEMS)])
    await trio.sleep(GATHER_S / 8)
    assert (len(relaying.applied), relaying.outbox.pending) == (BATCH_ITEMS, 0)


async def test_items_too_many_for_a_batch_follow_it_immediately_and_in_order(
    clock: MockClock, relaying: Relaying
) -> None:
    await trio.sleep(GATHER_S)
    before, uids = len(relaying.fake.batches), [f"u{number}0" for number in range(7)]
    relaying.fake.room = 3
    relaying.outbox.extend(map(login, uids))
    await trio.sleep(GATHER_S * 9 / 8)  # the first answer is read when changes have gathered
    assert relaying.applied == uids
    assert [len(batch.items) for batch in relaying.fake.batches[before:]] == [3, 3, 1]
    assert relaying.outbox.pending == 0
    assert relaying.relay.statistics().items == 7, "each counts once"


async def test_items_behind_one_user_with_a_large_record_are_not_sent_one_by_one(
    clock: MockClock, relaying: Relaying
) -> None:
    await trio.sleep(GATHER_S)
    before, uids = len(relaying.fake.batches), [f"u{number}0" for number in range(40)]
    relaying.fake.large = uids[0]
    relaying.outbox.extend(map(login, uids))
    await trio.sleep(GATHER_S * 9 / 8)
    assert relaying.applied == uids
    assert [len(batch.items) for batch in relaying.fake.batches[before:]] == [1, 2, 4, 8, 16, 9]


class YieldCountingRuntime(InlineCallsRuntime):
    """Counts the sleeps that only let other tasks run."""

    yields = 0

    async def sleep(self, seconds: float) -> None:
        self.yields += seconds == 0
        await super().sleep(seconds)


@pytest.mark.parametrize("uids", [["u0"], ["u0", "u1", "u2"]], ids=["one shard", "three shards"])
async def test_other_tasks_run_after_each_shard_with_a_step(
    clock: MockClock, nursery: trio.Nursery, uids: list[str]
) -> None:
    runtime = YieldCountingRuntime()
    relaying = await Relaying(runtime=runtime).run(nursery)
    await trio.sleep(1)
    before = runtime.yields
    relaying.outbox.extend([login(uid) for uid in uids])
    await until(lambda: relaying.applied)
    assert runtime.yields - before == len(uids)


@pytest.mark.parametrize("shards", [1, 3])
async def test_other_tasks_run_between_the_slices_of_a_plan(
    clock: MockClock, nursery: trio.Nursery, shards: int
) -> None:
    runtime, slices = YieldCountingRuntime(), 4
    relaying = Relaying(runtime=runtime, shards=shards)
    relaying.outbox.extend([login("u0")] * (slices * MAX_PLANNED_PER_CALL))
    nursery.start_soon(relaying.relay.run)
    await until(lambda: relaying.applied)
    assert runtime.yields >= slices


# Notices


async def test_notices_of_a_shard_are_passed_on_once_and_in_order(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    passed: list[NodeNotice] = []
    callbacks = RelayCallbacks(lambda _: None, passed.extend, lambda: "second")
    relaying = await Relaying(callbacks=callbacks).run(nursery)
    sent = [NodeNotice(NodeNoticeKind.KICKED, f"u{number}", "", "s") for number in range(3)]
    inbox = relaying.fake.inboxes[1] = sent[:2]
    await until(lambda: passed)
    inbox.append(sent[2])
    await trio.sleep(3 * PROBE_INTERVAL_S)
    assert passed == sent


# Fences


async def test_a_fenced_node_continues_under_a_new_id(
    clock: MockClock, relaying: Relaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, relay = relaying.fake, relaying.relay
    apply, fenced = fake.apply, list[bool]()

    def noting(steps: Sequence[Step]) -> list[Reply | StoreUnavailable | StoreError]:
        fenced.append(relay.is_fenced)
        return apply(steps)

    monkeypatch.setattr(fake, "apply", noting)
    fake.fenced = {"first"}
    relaying.outbox.append(login("u"))
    await until(lambda: fake.applied)
    assert fenced[:2] == [False, True]
    assert fake.counters[0].node == "second"
    await until(lambda: not relay.is_fenced)
    fake.fenced |= {"second"}  # a probe that sees the fence is enough
    await until(lambda: fake.counters[0].node == "third")


@pytest.mark.parametrize("met_by", ["probe", "refusal"])
async def test_a_node_that_slept_for_days_registers_under_a_new_id_as_after_a_fence(
    clock: MockClock, met_by: str
) -> None:
    session = Change(Op.REGISTER, "u", "", "s", 2, 0.0, 1000, 1000, 30_000)
    relaying = Relaying(live=lambda shard: [] if shard else [session])
    fake = relaying.fake
    fake.now_ms = 10**12
    async with trio.open_nursery() as nursery:
        await relaying.run(nursery)
        await trio.sleep(2 * PROBE_INTERVAL_S)
        fake.applied.clear()
        fake.counters.clear()  # its fence has expired, and with it its counters
        fake.now_ms += 2 * FENCE_TTL_S * 1000
        if met_by == "refusal":
            relaying.outbox.append(login("v", "another"))
        await until(lambda: any(change.uid == "u" for change in fake.applied))
        nursery.cancel_scope.cancel()
    assert fake.counters[0].node == "second"
    (registered,) = [change for change in fake.applied if change.uid == "u"]
    assert registered.op is Op.REGISTER, "it yields to a session elsewhere, other than after a loss"
    assert relaying.relay.writers[0].rollbacks == 0


async def test_it_is_told_of_the_first_redis_and_when_it_has_gone_back_and_not_of_an_outage(
    clock: MockClock,
) -> None:
    told: list[float] = []
    callbacks = RelayCallbacks(
        lambda _: None, lambda _: None, lambda: "second", lambda: told.append(trio.current_time())
    )
    relaying = Relaying(callbacks=callbacks)
    async with trio.open_nursery() as nursery:
        await relaying.run(nursery)
        await trio.sleep(2 * PROBE_INTERVAL_S)
        assert told
        told.clear()
        relaying.fake.counters.clear()  # Redis lost all
        await until(lambda: len(relaying.fake.counters) == 3)
        assert told
        told.clear()
        relaying.fake.away = {1}  # and what was written before is there
        await until(lambda: not relaying.connected)
        relaying.fake.away = set()
        await until(lambda: relaying.connected)
        assert not told
        nursery.cancel_scope.cancel()


# Outages, of one shard or of all


async def test_an_unreachable_shard_does_not_delay_others(clock: MockClock, relaying: Relaying) -> None:
    fake = relaying.fake
    fake.away = {1}
    relaying.outbox.extend([login("u1"), login("u0"), login("u2")])
    await until(lambda: len(fake.applied) == 2 and not relaying.connected)
    await trio.sleep(10)
    fake.probed.clear()
    await trio.sleep(10 * PROBE_INTERVAL_S)
    assert 9 <= fake.probed.count(0) <= 11, "the others are probed as usual"
    relaying.outbox.append(login("v0"))
    began = trio.current_time()
    await until(lambda: len(fake.applied) == 3)
    assert trio.current_time() - began < 0.3
    await until(lambda: relaying.relay.statistics().backlog == 1)


async def test_an_outage_is_two_log_lines_and_pending_changes_are_sent_after_it(
    clock: MockClock, relaying: Relaying
) -> None:
    fake = relaying.fake
    fake.away = {1, 2}
    relaying.outbox.extend([login("u1"), login("u2")])
    with structlog.testing.capture_logs() as lines:
        await trio.sleep(10)
        fake.away = {2}
        await until(lambda: fake.applied)
        assert not relaying.connected
        fake.away = set()
        await until(lambda: relaying.connected)
    assert relaying.applied == ["u1", "u2"]
    assert [line["event"] for line in lines] == ["Redis unreachable", "Redis reachable again"]
    assert {line["log_level"] for line in lines} == {"warning"}
    assert 9 < lines[-1]["outage_s"] < 12
    assert lines[-1]["pending"] in {0, 1}


async def test_a_loss_of_data_is_logged_once_and_another_cause_of_a_resync_is_not(
    clock: MockClock, relaying: Relaying
) -> None:
    fake = relaying.fake
    relaying.relay.writers[1].request_resync()
    with structlog.testing.capture_logs() as lines:
        await trio.sleep(2 * PROBE_INTERVAL_S)
        assert lines == []
        fake.counters.clear()
        await trio.sleep(4 * PROBE_INTERVAL_S)
    assert lines == [
        {
            "event": "Redis lost data, registering sessions again",
            "log_level": "warning",
            "node": "first",
            "shards": 3,
        }
    ]


async def test_a_resync_does_not_wait_for_the_server_that_has_the_version(
    clock: MockClock, relaying: Relaying
) -> None:
    fake = relaying.fake
    fake.meta_away = True
    fake.counters.clear()
    relaying.outbox.append(login("u0"))
    await until(lambda: fake.applied)
    assert relaying.relay.statistics().resyncs
    checks, fake.meta_away = fake.checks, False
    await until(lambda: fake.checks > checks)


async def test_each_refusal_is_logged_once_and_its_step_is_sent_again(
    clock: MockClock, relaying: Relaying
) -> None:
    fake = relaying.fake
    with structlog.testing.capture_logs() as lines:
        fake.refusing = {0, 1}
        await trio.sleep(30)
        fake.refusing = set()
        await until(lambda: relaying.connected)
        fake.answers = [StoreError("WRONGTYPE")]
        relaying.outbox.append(login("u"))
        await until(lambda: fake.applied)
    refusals = [(line["log_level"], line["error"]) for line in lines if line["event"] == "Redis refused"]
    assert sorted(refusals) == [("error", "NOPERM in 0"), ("error", "NOPERM in 1"), ("error", "WRONGTYPE")]
    assert relaying.applied == ["u"]


class LateWakeEvent(TrioWakeEvent):
    """Wakes half a second late, as on an overloaded machine."""

    async def wait(self, timeout_s: float) -> bool:
        rung = await super().wait(timeout_s)
        await trio.sleep(0.5)
        return rung


class LateRuntime(InlineCallsRuntime):
    """Sleeps as late."""

    def wake_event(self) -> TrioWakeEvent:
        return LateWakeEvent()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds + (0.5 if seconds else 0.0))


async def test_a_loop_that_is_always_late_still_sends_ends(clock: MockClock, nursery: trio.Nursery) -> None:
    relaying = Relaying(lease_holders=lambda: ("second",), runtime=LateRuntime())
    nursery.start_soon(relaying.relay.run)
    relaying.outbox.append(login("u1"))
    await until(lambda: relaying.applied)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    relaying.outbox.append(end("u1"))
    with trio.fail_after(5):
        await until(lambda: len(relaying.applied) == 2)


@pytest.mark.parametrize("peers", [("second",), ()])
async def test_with_peers_an_end_after_an_idle_time_waits_for_their_logins(
    peers: tuple[str, ...], clock: MockClock, nursery: trio.Nursery
) -> None:
    relaying = await Relaying(lease_holders=lambda: peers).run(nursery)
    relaying.outbox.append(login("u1"))
    await until(lambda: relaying.applied)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    relaying.outbox.extend([end("u1"), login("u2")])
    began = trio.current_time()
    applied_s: dict[str, float] = {}
    while len(applied_s) < 2:
        applied_s |= {uid: trio.current_time() - began for uid in relaying.applied[1 + len(applied_s) :]}
        await trio.sleep(0.001)
    assert applied_s["u2"] < 0.1
    assert (applied_s["u1"] >= CATCH_UP_DELAY_S) == bool(peers)
    assert applied_s["u1"] < CATCH_UP_DELAY_S + 0.1


@pytest.mark.parametrize("sessions", [("s",), ("s", "t")])
async def test_an_end_that_waits_for_other_nodes_does_not_wait_for_another_shard(
    sessions: tuple[str, ...], clock: MockClock, nursery: trio.Nursery
) -> None:
    relaying = await Relaying(lease_holders=lambda: ("second",)).run(nursery)
    relaying.outbox.append(login("u1"))
    await until(lambda: relaying.applied)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    relaying.outbox.append(end("u1"))
    began = trio.current_time()
    await trio.sleep(CATCH_UP_DELAY_S - GATHER_S / 4)
    for session in sessions:  # the first is sent immediately, and the second gathers
        relaying.outbox.append(login("u2", session))
        await trio.sleep(0.01)
    await until(lambda: relaying.applied.count("u1") == 2, look_s=0.01)
    assert trio.current_time() - began < CATCH_UP_DELAY_S + GATHER_S / 2


@pytest.mark.parametrize("cause", ["a check before another shard is opened", "a probe of another shard"])
async def test_an_end_does_not_go_right_after_a_call_for_another_shard_that_hung(
    cause: str, clock: MockClock, nursery: trio.Nursery
) -> None:
    """Logins of its user may be pending on other nodes, and the shard was not asked since."""
    relaying = await Relaying(lease_holders=lambda: ("second",)).run(nursery)
    relaying.outbox.extend([login("u1"), login("u2")])
    await until(lambda: len(relaying.applied) == 2)
    await trio.sleep(PROBE_INTERVAL_S + 1.0)
    relaying.outbox.append(login("x1"))  # shard 1 has just answered
    await trio.sleep(GATHER_S + 0.01)
    hung_at: list[float] = []

    def hang() -> None:
        if not hung_at:
            clock.jump(MIN_OUTAGE_S / 2)
            hung_at.append(trio.current_time())

    relaying.fake.hangs = hang
    if cause.startswith("a check"):
        relaying.relay.writers[2].request_resync()
        relaying.outbox.append(end("u1"))
    else:
        relaying.outbox.extend([end("u1"), end("u2")])
    await until(lambda: relaying.applied.count("u1") == 2, look_s=0.001)
    assert trio.current_time() - hung_at[0] >= CATCH_UP_DELAY_S
