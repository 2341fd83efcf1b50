"""Errors in this server while it answers and pushes: each costs one request or one connection."""

from collections.abc import Mapping, Sequence

import pytest
import trio
from trio.testing import MockClock

from presence.common.faults import Faults
from presence.core.registry import Handle
from presence.core.service_requests import QueryRequest
from presence.protocol import Code, Kind, Packet
from presence.watching.user_states import ShardSnapshot, WatchedState
from presence.watching.watch_service import WATCH_TIMEOUT_S
from tests.watching.fakes import Line, session
from tests.watching.shard import MemoryChannel
from tests.watching.test_watch_service import Node, Records, running, written


def codes(packets: list[Packet]) -> list[tuple[int | None, int | None]]:
    """Return id and error code of answers; None: granted."""
    return [(each.id, each.payload.get("code")) for each in packets if each.kind in (Kind.OK, Kind.ERROR)]


class Poisoned(Records):
    """Reading one user's record fails."""

    def read(self, uids: Sequence[str], *, detail: bool) -> Mapping[str, WatchedState]:
        if "poison" in uids:
            raise LookupError("a mistake")
        return super().read(uids, detail=detail)


async def test_only_the_failing_query_is_refused(autojump_clock: MockClock) -> None:
    node = Node()
    node.use(Poisoned(node.shard))
    async with running(node):
        asker, line = session()
        for id, uids in enumerate([["ann"], ["poison", "bob"], ["cy"]]):
            node.watching.take(asker, QueryRequest(id, uids))
        await trio.sleep(1)
        assert sorted(codes(line.packets()), key=str) == [(0, None), (1, Code.SERVER_ERROR), (2, None)]
        node.watching.take(asker, QueryRequest(7, ["ann"]))
        await trio.sleep(1)
        assert codes(line.packets()) == [(7, None)]
    assert node.faults.counts == {"query": 1}
    assert not node.ended


class Broken(Line):
    """A connection whose transport fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def send(self, handle: Handle, data: bytes) -> None:
        self._check()
        super().send(handle, data)

    def try_send(self, handle: Handle, data: bytes) -> bool:
        self._check()
        return super().try_send(handle, data)

    def _check(self) -> None:
        if self.fails:
            raise RuntimeError("a mistake")


async def test_only_a_connection_that_cannot_be_sent_a_change_ends(autojump_clock: MockClock) -> None:
    async with running() as node:
        line = Broken()
        watcher, _ = node.watch("ann", line=line)
        _, other = await node.watched("ann")
        line.fails = True
        node.shard.write("ann", "online")
        await trio.sleep(0.1)
        assert written(other) == [("ann", "online")]
        assert node.ended == [watcher]
    assert node.faults.counts == {"push": 1}


async def test_a_watch_whose_answer_cannot_be_sent_ends_its_connection(autojump_clock: MockClock) -> None:
    async with running() as node:
        line = Broken()
        line.fails = True
        watcher, _ = node.watch("ann", line=line)
        _, _ = await node.watched("ann")
        assert node.ended == [watcher]
    assert node.faults.counts == {"watch": 1}


class Confused(MemoryChannel):
    """A channel that fails unexpectedly, as often as a test says."""

    times = 0

    def snapshot(self, shard: int, uids: Sequence[str]) -> ShardSnapshot:
        if self.times:
            self.times -= 1
            raise LookupError("a mistake")
        return super().snapshot(shard, uids)


async def test_a_failed_subscription_is_made_again(autojump_clock: MockClock) -> None:
    node = Node()
    channel = node.channel = Confused(node.shard)
    channel.times = 2
    async with running(node):
        node.shard.write("ann", "online")
        _, line = node.watch("ann")
        await trio.sleep(WATCH_TIMEOUT_S)
        assert codes(line.packets()) == [(1, None)]
        node.shard.write("ann", "away")
        await trio.sleep(1)
        assert written(line) == [("ann", "away")]
    assert node.faults.counts == {"watch subscription": 2}


def test_a_fault_while_one_is_handled_is_contained_too() -> None:
    faults = Faults()

    def fail() -> None:
        raise RuntimeError("another")

    with faults.contained("query", fail):
        fail()
    assert faults.counts == {"query": 2}


def test_an_interrupt_is_not_a_fault() -> None:
    faults = Faults()

    def work() -> None:
        with faults.contained("query"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not faults.counts
