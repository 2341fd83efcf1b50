"""The phases of a shard's generation, and what a writer sends in each; the rest is in `tests/store`."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from presence.core.changes import Change, Op
from presence.outbox.overflow import RESYNC_PAUSE_S
from presence.outbox.queue import Outbox
from presence.outbox.replies import (
    CounterSnapshot,
    Opened,
    PeerTrace,
    PeerTraces,
    Probe,
    Reply,
    ReplyStatus,
    Superseded,
)
from presence.outbox.shard_writer import MAX_SILENCE_MS, NEXT_PHASE, Phase, PhaseEvent, ShardWriter
from presence.outbox.steps import Batch, Counter, Retirement

HISTORY = "the history of Redis"


def change(op: Op, uid: str, at: float = 0.0) -> Change:
    return Change(op, uid, "", f"s-{uid}", 2, at, 1000, 1000, 30_000)


class Driven:
    """A writer and a Redis of which a test decides the answers."""

    def __init__(self, live: Iterable[Change] = (), max_items: int = 100) -> None:
        self.outbox = Outbox(lambda _uid: 0, 1, max_items=max_items)
        self.now = 1000.0
        self.writer = ShardWriter(0, "a", self.outbox, lambda _shard: live)
        self.applied: list[CounterSnapshot] = []  # latest first

    def step(self) -> Batch | Retirement | None:
        self.writer.prepare_step(self.now)
        while (step := self.writer.next_step(self.now)) is None and self.writer.needs_another_slice:
            self.writer.prepare_step(self.now)
        return step

    def batch(self) -> Batch:
        step = self.step()
        assert isinstance(step, Batch)
        return step

    def accept(self, history: str = HISTORY, last_id: str = "") -> Batch | Retirement:
        """Accept the next step."""
        step = self.step()
        assert step is not None
        opened = Opened(tuple(self.applied), {}) if isinstance(step, Batch) and step.opening else None
        self.writer.accept_reply(step, Reply(ReplyStatus.OK, history, last_id=last_id, opened=opened))
        if isinstance(step, Batch):
            self.applied.insert(0, CounterSnapshot(step.counter))
        return step

    def refuse(self, status: ReplyStatus, fitting: int = 0) -> None:
        self.writer.accept_reply(self.batch(), Reply(status, HISTORY, fitting=fitting))

    def complete(self) -> None:
        while self.step() is not None:
            self.accept()
        assert self.writer.phase is Phase.COMPLETE

    def probe(
        self,
        *,
        fenced: bool = False,
        now_ms: int = 1000,
        counter: Counter | None = None,
        traces: PeerTraces | None = None,
    ) -> None:
        counter = counter or self.applied[0].counter
        self.writer.accept_probe(
            Probe(0, HISTORY, fenced, counter, "0-0", traces or {}, 0, (), now_ms), self.now
        )


def opening(driven: Driven) -> bool:
    return driven.batch().opening is not None


def reached(phase: Phase) -> Driven:
    """A writer in a phase; a login is pending in each but COMPLETE."""
    driven = Driven()
    if phase is Phase.FENCED:
        driven.refuse(ReplyStatus.FENCED)
    elif phase is not Phase.CLOSED:
        driven.outbox.append(change(Op.LOGIN, "ann"))
        driven.accept()
        if phase is Phase.COMPLETE:
            driven.complete()
    assert driven.writer.phase is phase
    return driven


EVENTS: dict[PhaseEvent, Callable[[Driven], object]] = {
    PhaseEvent.OPENED: Driven.accept,
    PhaseEvent.COMPLETED: Driven.accept,
    PhaseEvent.LEFT: lambda driven: driven.writer.request_resync(),
    PhaseEvent.FENCED: lambda driven: driven.probe(fenced=True, counter=Counter("a", 1, 1)),
    PhaseEvent.RENAMED: lambda driven: driven.writer.rename("a2"),
}


@pytest.mark.parametrize("event", PhaseEvent)
@pytest.mark.parametrize("phase", Phase)
def test_each_event_leads_to_the_phase_of_the_table(phase: Phase, event: PhaseEvent) -> None:
    driven = reached(phase)
    if EVENTS[event] is not Driven.accept or (phase, event) in NEXT_PHASE:
        EVENTS[event](driven)
    else:
        assert driven.step() is None or opening(driven) == (phase is Phase.CLOSED), "it cannot happen"
    assert driven.writer.phase is NEXT_PHASE.get((phase, event), phase)


def test_the_first_batches_open_register_and_complete() -> None:
    driven = Driven([change(Op.REGISTER, "bob")])
    driven.outbox.append(change(Op.LOGIN, "ann"))
    assert driven.batch().opening is not None
    driven.accept()
    batch = driven.batch()
    assert [(item.change.op, item.change.uid) for item in batch.items] == [
        (Op.REGISTER, "bob"),
        (Op.LOGIN, "ann"),
    ]
    assert (batch.counter, batch.complete) == (Counter("a", 1, 2), True)


def test_a_step_is_the_same_until_it_is_answered() -> None:
    driven = reached(Phase.RESYNCING)
    assert driven.step() == driven.step()


@pytest.mark.parametrize("applied", [True, False])
def test_an_unconfirmed_batch_is_sent_again_unless_it_was_applied(applied: bool) -> None:
    driven = reached(Phase.COMPLETE)
    driven.outbox.append(change(Op.END, "ann"))
    lost = driven.batch()
    driven.writer.answer_lost()
    driven.writer.request_resync()
    if applied:
        driven.applied.insert(0, CounterSnapshot(lost.counter, (Superseded("ann", "", "s"),)))
    step = driven.batch()
    reply = Reply(ReplyStatus.OK, HISTORY, opened=Opened(tuple(driven.applied), {}))
    assert bool(driven.writer.accept_reply(step, reply)) == applied
    assert driven.outbox.pending == (not applied)
    assert [item.change.op for item in driven.batch().items] == ([] if applied else [Op.END])


def test_a_heavy_batch_is_sent_in_parts_under_numbers_in_order() -> None:
    driven = reached(Phase.COMPLETE)
    driven.outbox.extend(change(Op.LOGIN, f"u{number}") for number in range(4))
    before = driven.batch().counter
    driven.refuse(ReplyStatus.HEAVY, fitting=1)
    assert driven.batch().counter == before
    sent = [driven.accept() for _ in range(3)]
    uids = [[item.change.uid for item in step.items] for step in sent if isinstance(step, Batch)]
    assert uids == [["u0"], ["u1", "u2"], ["u3"]]
    assert [step.counter.n - before.n for step in sent] == [0, 1, 2]


def test_a_heavy_batch_that_redis_may_yet_get_begins_a_new_generation() -> None:
    driven = reached(Phase.COMPLETE)
    driven.outbox.extend([change(Op.LOGIN, "u1"), change(Op.LOGIN, "u2")])
    driven.batch()
    driven.writer.answer_lost()
    driven.refuse(ReplyStatus.HEAVY, fitting=1)
    assert opening(driven)


def test_skipped_changes_are_reported_by_an_opening_after_all_others_are_written() -> None:
    driven = Driven(max_items=1)
    driven.complete()
    driven.outbox.extend(change(Op.LOGIN, uid) for uid in ("written", "skipped", "skipped"))
    assert [item.change.uid for item in driven.batch().items] == ["written"]
    driven.accept()
    assert driven.writer.wakes_at(driven.now) == driven.now + RESYNC_PAUSE_S
    driven.now += RESYNC_PAUSE_S
    first = driven.batch().opening
    driven.writer.request_resync()  # as if it were refused
    second = driven.batch().opening
    assert first is not None
    assert first.skipped is not None
    assert second is not None
    assert (first.skipped.number, second.skipped) == (2, first.skipped)
    driven.complete()
    assert not driven.writer.wakes_at(driven.now)


def test_a_retirement_precedes_what_the_outbox_gets_after_it_is_due() -> None:
    driven = reached(Phase.COMPLETE)
    driven.writer.request_resync()
    driven.accept()
    while isinstance(step := driven.step(), Batch):
        driven.accept()
        driven.outbox.append(change(Op.LOGIN, "late"))
    assert isinstance(step, Retirement)
    driven.accept()
    assert [item.change.uid for item in driven.batch().items] == ["late"]
    driven.accept()
    assert driven.writer.is_comparable(driven.now)


def test_a_retirement_goes_on_without_a_wait_until_redis_has_seen_all_sessions() -> None:
    driven = reached(Phase.COMPLETE)
    driven.writer.request_resync()
    driven.accept()
    while isinstance(step := driven.step(), Batch):
        driven.accept()
    assert isinstance(step, Retirement)
    driven.writer.accept_reply(step, Reply(ReplyStatus.OK, HISTORY, cursor="5"))
    assert driven.writer.is_eager(driven.now)
    assert driven.step() == replace(step, cursor="5")
    driven.accept()
    assert not driven.writer.is_eager(driven.now)
    assert driven.step() is None


def test_a_resync_after_skipped_changes_completes_its_generation() -> None:
    driven = Driven(max_items=1)
    driven.complete()
    driven.outbox.extend(change(Op.LOGIN, uid) for uid in ("written", "skipped"))
    driven.accept()
    driven.now += RESYNC_PAUSE_S
    driven.accept()
    assert driven.writer.phase is Phase.RESYNCING
    assert driven.batch().complete


def test_an_interrupted_resync_after_a_loss_is_continued_as_one() -> None:
    driven = reached(Phase.COMPLETE)
    driven.outbox.append(change(Op.END, "ann"))
    driven.applied.clear()  # Redis lost all
    driven.writer.request_resync()
    for _ in range(2):
        driven.accept()
        assert [item.restores for item in driven.batch().items] == [True]
        driven.writer.request_resync()
    assert (driven.writer.resyncs, driven.writer.rollbacks) == (2, 1)


def test_a_lost_fence_shows_that_redis_has_gone_back_though_the_own_counter_is_as_expected() -> None:
    driven = reached(Phase.COMPLETE)
    for is_fenced, rollbacks in ((False, 0), (True, 0), (False, 1), (False, 1)):
        driven.probe(traces={"b": PeerTrace(1, True, is_fenced)})
        assert driven.writer.rollbacks == rollbacks
    assert driven.writer.phase is Phase.COMPLETE  # what this node has written is there


@pytest.mark.parametrize(
    ("is_lost", "history", "op"),
    [(False, HISTORY, Op.REGISTER), (True, HISTORY, Op.RECLAIM), (False, "another history", Op.RECLAIM)],
    ids=["no loss", "batches lost", "another history"],
)
def test_a_registration_yields_less_when_redis_may_have_lost_the_session(
    is_lost: bool, history: str, op: Op
) -> None:
    driven = Driven([change(Op.REGISTER, "bob")])
    driven.complete()
    if is_lost:
        driven.applied.clear()
    for _ in range(2):  # interrupted, too
        driven.writer.request_resync()
        driven.accept(history)
        assert [item.change.op for item in driven.batch().items] == [op]


def test_an_opening_names_the_highest_entry_that_was_seen() -> None:
    driven = reached(Phase.COMPLETE)
    for uid, last_id in (("ann", "9-0"), ("bob", "10-0"), ("eve", "9-5")):
        driven.outbox.append(change(Op.LOGIN, uid))
        driven.accept(last_id=last_id)
    driven.writer.request_resync()
    begun = driven.batch().opening
    assert begun is not None
    assert begun.floor == "10-0"


@pytest.mark.parametrize("said_by", ["probe", "refusal"])
def test_a_generation_is_above_those_that_redis_has_of_this_node(said_by: str) -> None:
    driven = reached(Phase.COMPLETE)
    if said_by == "probe":
        driven.probe(counter=Counter("a", 7, 3))
    else:
        driven.outbox.append(change(Op.LOGIN, "bob"))
        driven.writer.accept_reply(driven.batch(), Reply(ReplyStatus.UNKNOWN, HISTORY, generation=7))
    assert opening(driven)
    assert driven.batch().counter.generation == 8


def test_other_nodes_may_be_swept_while_a_generation_is_open_and_ends_are_not_held_back() -> None:
    driven = reached(Phase.CLOSED)
    settled = [driven.writer.is_settled(driven.now)]
    driven.complete()
    settled.append(driven.writer.is_settled(driven.now))
    driven.writer.gate.opens_at = driven.now + 1
    settled += [driven.writer.is_settled(driven.now), driven.writer.is_settled(driven.now + 1)]
    assert settled == [False, True, False, True]


def test_a_renamed_node_is_lost_until_its_sessions_are_registered() -> None:
    driven = reached(Phase.FENCED)
    assert driven.step() is None
    driven.writer.rename("a2")
    lost = [driven.writer.lost_to_fence]
    driven.complete()
    lost.append(driven.writer.lost_to_fence)
    driven.writer.request_resync()
    lost.append(driven.writer.lost_to_fence)
    assert lost == [True, False, False]


@pytest.mark.parametrize(("later_ms", "phase"), [(0, Phase.COMPLETE), (1, Phase.FENCED)])
def test_a_long_silence_counts_as_a_fence(later_ms: int, phase: Phase) -> None:
    driven = reached(Phase.COMPLETE)
    driven.probe(now_ms=1000)
    driven.probe(now_ms=1000 + MAX_SILENCE_MS + later_ms)
    assert driven.writer.phase is phase


def test_a_batch_says_how_late_it_is_at_least_by_the_shards_clock() -> None:
    driven = reached(Phase.COMPLETE)
    driven.probe(now_ms=5_000_000)
    driven.outbox.append(change(Op.LOGIN, "bob"))
    driven.now += 2
    assert driven.batch().sent_ms == 5_002_000
    driven.writer.request_resync()
    assert driven.batch().sent_ms == 0, "another server may have another clock"
