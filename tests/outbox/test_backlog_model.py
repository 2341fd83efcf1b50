"""The backlog against a naive model, in random sequences of everything that moves its cursor."""

from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from presence.core.changes import Change, Op
from presence.outbox import backlog
from presence.outbox.backlog import Backlog
from presence.outbox.queue import Outbox, size_of
from presence.outbox.steps import Item

UIDS = ("ann", "bob", "cy")


class Model:
    """A backlog whose batches a naive Redis takes; changes of a user have to reach it in order, each once."""

    def __init__(self) -> None:
        self.outbox = Outbox(lambda _uid: 0, 1, max_items=10_000)
        self.log = self.outbox.logs[0]
        self.live: dict[tuple[str, str], Change] = {}
        self.backlog = Backlog(0, self.log, lambda _shard: [*self.live.values()])
        self.appended: list[Change] = []
        self.written: list[Change] = []
        self.covered: set[Change] = set()  # updates that a registration replaces
        self.batch: list[Item] = []
        self.with_ends = True
        self.number = 0

    def append(self, op: Op, uid: str, device: str) -> None:
        self.number += 1
        present = self.live.get((uid, device))
        session = f"s{self.number}" if op is Op.LOGIN or present is None else present.session
        change = Change(op, uid, device, session, 1, float(self.number), 0, 0, 30_000)
        if op is Op.END:
            self.live.pop((uid, device), None)
        elif op is Op.LOGIN:
            self.live[uid, device] = change._replace(op=Op.REGISTER)
        self.appended.append(change)
        self.outbox.append(change)

    def gate(self, is_open: bool) -> None:
        self.with_ends = is_open

    def take(self, limit: int, with_queued: bool) -> None:
        """Take a batch, unless one is in flight."""
        self.backlog.begin_slice()
        if self.batch or self.backlog.needs_another_slice:
            return
        self.batch = self.backlog.take(limit, with_ends=self.with_ends, with_queued=with_queued)
        assert len(self.batch) <= limit
        assert self.with_ends or not any(item.change.op is Op.END for item in self.batch)
        logins = {change.session for change in self.log.changes if change.op is Op.LOGIN}
        registered = {item.change.session for item in self.batch if item.change.op is Op.REGISTER}
        assert not registered & logins

    def cut(self, fitting: int) -> None:
        if fitting < len(self.batch):
            self.backlog.cut(fitting)
            del self.batch[fitting:]

    def accept(self) -> None:
        if self.batch:
            self.backlog.acknowledge()
            skipped_ops = (Op.REGISTER, Op.PENDING_LOGIN)
            self.written += [item.change for item in self.batch if item.change.op not in skipped_ops]
            self.batch = []

    def resync(self, applied: bool) -> None:
        if applied:
            self.accept()
        self.batch = []
        before = {*self.log.changes}
        logins = {change.session for change in before if change.op is Op.LOGIN}
        self.backlog.begin_resync(lost=False)
        while self.backlog.needs_another_slice:
            self.backlog.begin_slice()
        dropped = before - {*self.log.changes}
        assert dropped == {each for each in before if each.op is Op.UPDATE and each.session not in logins}
        self.covered |= dropped

    def check(self) -> None:
        statistics = self.outbox.statistics()
        assert statistics.pending == len(self.log.changes)
        assert statistics.pending_bytes == self.log.size_bytes == sum(map(size_of, self.log.changes))
        assert statistics.queued == self.log.queued
        left = {*self.appended} - {*self.written} - self.covered
        assert self.log.changes == [change for change in self.appended if change in left]

    def finish(self) -> None:
        """Write all that is left."""
        self.gate(True)
        self.accept()
        for _ in range(100):
            self.take(5, True)
            self.accept()
        assert self.backlog.is_empty
        assert not self.backlog.has_held_changes
        assert {change.op for change in self.covered} <= {Op.UPDATE}
        for uid in UIDS:
            expected = [each for each in self.appended if each.uid == uid and each not in self.covered]
            assert [each for each in self.written if each.uid == uid] == expected


COMMANDS = st.one_of(
    st.tuples(
        st.just("append"),
        st.sampled_from([Op.LOGIN, Op.END, Op.UPDATE]),
        st.sampled_from(UIDS),
        st.sampled_from(["", "phone"]),
    ),
    st.tuples(st.just("take"), st.integers(1, 6), st.booleans()),
    st.just(("accept",)),
    st.tuples(st.just("cut"), st.integers(0, 5)),
    st.tuples(st.just("gate"), st.booleans()),
    st.tuples(st.just("resync"), st.booleans()),
)


@settings(max_examples=7 * settings().max_examples, deadline=None)
@given(st.lists(COMMANDS, max_size=60))
def test_changes_of_a_user_reach_redis_in_order_and_once(commands: list[tuple[Any, ...]]) -> None:
    model = Model()
    with mock.patch.multiple(backlog, MAX_SCANNED_PER_CALL=4, MAX_PLANNED_PER_CALL=3):  # so that slices end
        for name, *arguments in commands:
            getattr(model, name)(*arguments)
            model.check()
        model.finish()
