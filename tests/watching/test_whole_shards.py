"""Shards followed as a whole: when, what a switch misses (nothing), what older servers write; paced reads."""

import pytest
import trio
from trio.testing import MockClock

from presence.core.service_requests import UnwatchRequest
from presence.watching import shard_placement, shard_watch
from presence.watching.server_watch import CHECK_INTERVAL_S, MAX_CHANGES_PER_TURN
from presence.watching.shard_watch import (
    COMPARE_CYCLE_S,
    LINGER_S,
    MAX_COMPARED_PER_S,
    MAX_REREAD_PER_PACE,
    REREAD_PACE_S,
    ReadPace,
    reread_share,
)
from presence.watching.watch_service import Watching
from tests.watching.test_watch_service import Node, names, running, written

MOST = 6  # users with channels of their own
MANY = names(MOST + 1)


@pytest.fixture(autouse=True)
def few_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_placement, "MAX_USER_CHANNELS", MOST)


def whole_shards(node: Node) -> int:
    return int(node.watching.report()["whole_shards"])


async def test_a_shard_with_many_watched_users_is_followed_as_a_whole(autojump_clock: MockClock) -> None:
    async with running() as node:
        await node.watched(*MANY[:MOST])
        assert (whole_shards(node), len(node.shard.subscribed)) == (0, MOST)
        _, line = await node.watched(MANY[MOST])
        assert (whole_shards(node), node.shard.subscribed) == (1, set())
        node.shard.write(MANY[MOST], "online")
        node.shard.write("nobody", "online")
        await trio.sleep(0.1)
        assert written(line) == [(MANY[MOST], "online")]
        assert node.figures("shards")["switches"] == 1


async def test_a_shard_that_many_users_are_wanted_of_at_first_joins_as_a_whole(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        await node.watched(*MANY)
        assert (whole_shards(node), node.shard.subscribed) == (1, set())
        assert node.figures("shards")["switches"] == 0


async def test_a_shard_with_few_watched_users_for_a_while_is_followed_by_user_again(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        watcher, line = await node.watched(*MANY)
        node.watching.take(watcher, UnwatchRequest(2, MANY[MOST // 2 :]))
        await trio.sleep(LINGER_S - 1)
        assert whole_shards(node) == 1
        await trio.sleep(2)
        assert (whole_shards(node), node.shard.subscribed) == (0, set(MANY[: MOST // 2]))
        line.packets()
        node.shard.write(MANY[0], "online")
        await trio.sleep(0.1)
        assert written(line) == [(MANY[0], "online")]


async def test_the_number_of_users_may_vary_between_half_and_all_without_a_switch(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        watcher, _ = await node.watched(*MANY)
        node.watching.take(watcher, UnwatchRequest(2, MANY[MOST // 2 + 1 :]))
        await trio.sleep(2 * LINGER_S)
        assert whole_shards(node) == 1


async def test_no_change_is_missed_or_doubled_at_a_switch(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("nobody", "online")  # the stream has a beginning
        _, line = await node.watched(MANY[0])
        other, _ = node.watch(*MANY[1:])
        statuses = []
        for number in range(100):  # every half millisecond, of which a switch takes some dozens
            if number == 60:
                await trio.sleep(0.1)
                assert whole_shards(node) == 1
                node.watching.left(other)
                await trio.sleep(LINGER_S - 0.01)
            statuses.append("away" if number % 2 else "online")
            node.shard.write(MANY[0], statuses[-1])
            await trio.sleep(0.0005)
        await trio.sleep(0.1)
        assert [status for _, status in written(line)] == statuses
        assert (node.figures("shards")["switches"], whole_shards(node)) == (2, 0)


async def test_what_an_older_server_writes_arrives_with_the_next_message_or_check(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        node.shard.write("nobody", "online")  # the stream has a beginning
        _, line = await node.watched(*MANY)
        node.shard.is_old = True
        node.shard.write(MANY[0], "online")
        await trio.sleep(CHECK_INTERVAL_S + 0.1)
        assert written(line) == [(MANY[0], "online")]
        node.shard.write(MANY[0], "away")
        node.shard.is_old = False
        node.shard.write(MANY[1], "online")
        await trio.sleep(1)
        assert written(line) == [(MANY[0], "away"), (MANY[1], "online")]
        assert (node.figures("views")["gaps"], node.figures("shards")["losses"]) == (2, 0)


async def test_replays_for_what_older_servers_write_are_few(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("nobody", "online")  # the stream has a beginning
        _, line = await node.watched(*MANY)
        for number in range(200):
            node.shard.is_old = number % 2 == 0
            node.shard.write(MANY[0], "away" if number % 2 else "online")
            await trio.sleep(0.005)
        await trio.sleep(1)
        assert [status for _, status in written(line)] == ["online", "away"] * 100
        assert node.figures("shards")["replays"] <= 10


async def test_a_shard_followed_as_a_whole_recovers_after_a_loss(autojump_clock: MockClock) -> None:
    async with running() as node:
        node.shard.write("nobody", "online")  # the stream has a beginning
        _, line = await node.watched(*MANY)
        node.channel.is_up = False
        await trio.sleep(1)
        for status in ("online", "away"):
            node.shard.write(MANY[0], status)
        node.channel.is_up = True
        await trio.sleep(2)
        assert written(line) == [(MANY[0], "online"), (MANY[0], "away")]
        assert whole_shards(node) == 1


class Turns(trio.abc.Instrument):
    """The most changes that one step of a task has pushed."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching
        self.changes = self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        changes = self._watching.report()["pushes"]["changes"]
        self.most, self.changes = max(self.most, changes - self.changes), changes


async def test_other_tasks_run_while_a_message_of_many_changes_is_applied(
    autojump_clock: MockClock,
) -> None:
    async with running() as node:
        users = names(30)
        await node.watched(*users)
        turns = Turns(node.watching)
        trio.lowlevel.add_instrument(turns)
        node.shard.write_together((uid, status) for status in ("online", "away") * 8 for uid in users)
        await trio.sleep(0.5)
        trio.lowlevel.remove_instrument(turns)
        assert turns.changes == 16 * len(users)
        assert turns.most <= MAX_CHANGES_PER_TURN


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_worker_compares_so_many_users_a_second_in_all_its_shards(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setattr(shard_watch, "MAX_USERS_PER_COMPARISON", 5)
    monkeypatch.setattr(shard_watch, "MAX_COMPARED_PER_S", 5)
    async with running() as node:
        for number in range(100):
            await node.watched(f"ann-{number}", f"{'far-' if shards == 2 else ''}bob-{number}")
        await trio.sleep(COMPARE_CYCLE_S)
        before = node.figures("shards")["walked"]
        await trio.sleep(60)
        assert 250 <= node.figures("shards")["walked"] - before <= 305


@pytest.mark.parametrize(
    ("users", "seconds"), [(MAX_COMPARED_PER_S, 1.0), (MAX_REREAD_PER_PACE, REREAD_PACE_S)]
)
def test_a_pace_allows_so_many_users_per_period(users: int, seconds: float) -> None:
    pace = ReadPace(lambda: users, seconds)
    now, read = 0.0, 0
    while now < 20 * seconds:
        if pace.free_at <= now:
            pace.charge(min(users, 300), now)
            read += min(users, 300)
        else:
            now = pace.free_at
    assert 19 * users <= read <= 21 * users


@pytest.mark.parametrize(
    ("nodes", "users"), [(0, 500), (1, 500), (20, 500), (40, 250), (54, 185), (200, 50), (1000, 50)]
)
def test_nodes_share_the_users_whom_they_read_again(nodes: int, users: int) -> None:
    assert reread_share(nodes) == users


async def test_the_share_of_a_node_follows_the_number_of_nodes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_REREAD_PER_PACE", "ALL_REREAD_PER_PACE"):
        monkeypatch.setattr(shard_watch, name, 4)
    monkeypatch.setattr(shard_watch, "MIN_REREAD_PER_PACE", 1)
    monkeypatch.setattr(shard_watch, "REREAD_PACE_S", 10.0)
    nodes = 4
    async with running(Node(live_nodes=lambda: nodes)) as node:
        _, line = await node.watched(*MANY)
        node.channel.is_up = False
        await trio.sleep(1)
        for uid in MANY:
            node.shard.write(uid, "online")
        node.shard.entries.clear()
        node.channel.is_up = True
        await trio.sleep(25)
        assert len(written(line)) == 3
        nodes = 1
        await trio.sleep(10)
        assert len(written(line)) == 4


async def test_a_watch_is_answered_while_all_records_are_read_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_watch, "MAX_USERS_PER_SNAPSHOT", 1)
    monkeypatch.setattr(shard_watch, "MAX_REREAD_PER_PACE", 1)
    monkeypatch.setattr(shard_watch, "REREAD_PACE_S", 10.0)
    async with running() as node:
        _, line = await node.watched(*MANY)
        node.channel.is_up = False
        await trio.sleep(1)
        for uid in (MANY[0], MANY[-1], "other"):
            node.shard.write(uid, "online")
        node.shard.entries.clear()
        node.channel.is_up = True
        await trio.sleep(2)
        assert (written(line), node.figures("shards")["rereads"]) == ([(MANY[0], "online")], 1)
        await node.watched(MANY[-1], "other")
        assert written(line) == [(MANY[-1], "online")]
        node.shard.write(MANY[2], "away")
        await trio.sleep(0.1)
        assert written(line) == [(MANY[2], "away")], "its record is not read again yet"
        await trio.sleep(10 * len(MANY))
        assert written(line) == []
        node.shard.write(MANY[1], "online")
        await trio.sleep(0.1)
        assert written(line) == [(MANY[1], "online")]
