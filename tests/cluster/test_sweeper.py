"""Fences and sweeps of dead nodes, and the walk that restores their index, in virtual time."""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from presence.cluster.lease_table import LeaseRow
from presence.cluster.sweeper import ReindexingWalk
from presence.common.errors import StoreError
from presence.outbox.replies import Reply
from presence.outbox.steps import Fencing, Step, Sweep
from tests.cluster.dying_cluster import (
    DEAD,
    ENDED,
    IDLE_S,
    LEASE_S,
    SESSIONS,
    Redis,
    live,
)


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
