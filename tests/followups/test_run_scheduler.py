"""When the scheduler runs: for each shard at its own interval, and again after an outage."""

from contextlib import closing
from typing import NoReturn

import pytest
import structlog.testing
import trio
from structlog.testing import CapturingLogger

from presence.common.background_job import BackgroundJob
from presence.common.errors import StoreUnavailable
from presence.common.runtime import TrioRuntime
from presence.config.followup_rules import Rule
from presence.followups import run_scheduler
from presence.followups.run_scheduler import POLL_INTERVAL_S, FollowUpScheduler, scheduler_outage
from presence.store import shard_job
from presence.store.keys import Keys
from presence.store.redis_client import Redis
from presence.store.shard_job import META_POLL_INTERVAL_S
from tests.followups.shards import Shard
from tests.support.no_threads import MESSAGE
from tests.support.waiting import until


def task_of(scheduler: FollowUpScheduler) -> BackgroundJob:
    log = structlog.get_logger("presence.followups")
    return BackgroundJob(scheduler, scheduler_outage(log), TrioRuntime())


def test_a_quiet_shard_is_polled_once_a_second(shard: Shard) -> None:
    with closing(shard.scheduler()) as scheduler:
        shard.release_runner()
        assert POLL_INTERVAL_S - 0.5 < scheduler.run_once() <= POLL_INTERVAL_S
        scheduler.run_once()
        assert scheduler.counters.runs == 1, "an earlier call does nothing"


def test_a_rule_with_a_short_delay_is_polled_more_often(shard: Shard) -> None:
    with closing(shard.scheduler([Rule("soon", 0.2)])) as scheduler:
        shard.release_runner()
        assert scheduler.run_once() <= 0.1


def test_all_shards_are_scheduled(client: Redis, url: str) -> None:
    keys = Keys(shards=16)
    client.hset(keys.meta, "shards", 16)
    with closing(FollowUpScheduler(url, rules=[Rule("x", 0)])) as scheduler:
        scheduler.run_once()
        assert scheduler.counters.runs == 16
        for shard in range(16):
            client.xadd(keys.events(shard), {"type": "offline", "uid": f"u{shard}", "last_seen_ms": 1})
        for _ in range(2):
            scheduler._due.clear()
            scheduler.run_once()
    assert {client.xlen(keys.followups(shard)) for shard in range(16)} == {1}


def test_the_scheduler_waits_until_a_server_has_stored_the_number_of_shards(client: Redis, url: str) -> None:
    with closing(FollowUpScheduler(url)) as scheduler:
        assert scheduler.run_once() == META_POLL_INTERVAL_S
        assert client.dbsize() == 0
        client.hset(Keys().meta, "shards", 2)
        scheduler.run_once()
        assert scheduler.counters.runs == 2


def test_retries_during_an_outage_back_off_and_it_is_logged_once() -> None:
    scheduler, log = FollowUpScheduler("unix:///nowhere/redis.sock", shards=1), CapturingLogger()
    outage, delays = scheduler_outage(log), []
    for _ in range(6):
        scheduler._due.clear()
        delays.append(scheduler.run_once())
        assert scheduler.failure is not None
        outage.failed("run", scheduler.failure)
    assert isinstance(scheduler.failure, StoreUnavailable)
    assert 0 < delays[0] <= 0.1
    assert 1 < delays[-1] <= 2
    outage.worked("run")
    assert [call.args[0] for call in log.calls] == ["follow-ups waiting for Redis", "follow-ups resumed"]


async def test_the_task_continues_after_an_outage(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_job, "RETRY_MAX_S", 0.02)
    shard.go_offline("ann")
    shard.release_runner()
    shard.client.rename("presence:{0}:events", "elsewhere")
    shard.client.set("presence:{0}:events", "no stream")
    task = task_of(shard.scheduler())
    with trio.fail_after(10), structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await until(lambda: task.report()["failures"] >= 3)
            shard.client.rename("elsewhere", "presence:{0}:events")
            await until(lambda: len(lines) > 1)
            task.stop()
    assert [line["event"] for line in lines] == [
        "follow-ups waiting for Redis",
        "follow-ups resumed",
    ]
    assert task.report()["planned"] == 1


async def test_an_unexpected_error_does_not_end_the_server(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_scheduler, "RETRY_MAX_S", 0.01)
    scheduler, failures = shard.scheduler(), iter([ZeroDivisionError])
    real = scheduler.run_once

    def run_once() -> float:
        for failure in failures:
            raise failure
        return real()

    monkeypatch.setattr(scheduler, "run_once", run_once)
    shard.go_offline("ann")
    shard.release_runner()
    task = task_of(scheduler)
    with trio.fail_after(10), structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await until(lambda: task.report()["planned"] > 0)
            task.stop()
    assert [line["event"] for line in lines] == ["background job failed"]


async def test_a_lack_of_threads_to_connect_in_is_logged_once(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_scheduler, "RETRY_MAX_S", 0.01)
    task = task_of(shard.scheduler())
    refused: list[int] = []

    def refuse(*_: object, **__: object) -> NoReturn:
        refused.append(1)
        raise RuntimeError(MESSAGE)

    with trio.fail_after(10), structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as context:
                context.setattr(trio.to_thread, "run_sync", refuse)
                nursery.start_soon(task.run)
                await until(lambda: len(refused) >= 3)
            await until(lambda: task.report()["runs"] > 0)
            await until(lambda: len(lines) > 1)
            task.stop()
    assert [line["event"] for line in lines] == ["follow-ups waiting for Redis", "follow-ups resumed"]
