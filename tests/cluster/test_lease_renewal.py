"""Renewals of the lease, and its end, in virtual time."""

import itertools
import json
from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from presence.cluster.lease_table import LeaseRow
from presence.common.circuit_breaker import BACKOFF_FIRST_S
from presence.common.errors import StoreError, StoreUnavailable
from tests.cluster.dying_cluster import (
    LEASE_S,
    Claim,
    Redis,
    made,
)


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


async def test_a_node_whose_lease_has_expired_is_not_among_the_live_ones(
    clock: MockClock, redis: Redis
) -> None:
    cluster = made(redis)
    await cluster.start()
    assert cluster.live_nodes() == 2
    with trio.move_on_after(LEASE_S + 1):
        await cluster.run()
    assert cluster.live_nodes() == 1


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
