"""Reading due follow-ups in a group: at least once, and one that keeps failing becomes a dead letter."""

import itertools
from typing import Any

import pytest
import trio

from presence.followups import FollowUp, due, due_sync
from presence.subscriber import group_cursor
from tests.followups.shards import Shard

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_cursor, "BLOCK_MS", 20)


@pytest.fixture
def shard(shard: Shard) -> Shard:
    """A shard where two follow-ups have been delivered."""
    event = shard.go_offline("ann")
    assert event
    shard.go_offline("bob")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    return shard


def users(some: list[Any]) -> list[str]:
    return [each.uid for each in some if isinstance(each, FollowUp)]


def test_a_group_begins_with_all_kept_follow_ups_and_resumes_where_it_stopped(shard: Shard, url: str) -> None:
    with due_sync(url, group="g", consumer="c") as followups:
        first, second = itertools.islice(followups, 2)
        followups.ack(second)
    assert users([first, second]) == ["ann", "bob"]
    assert isinstance(first, FollowUp)
    assert (first.name, first.payload, first.reason, first.code) == ("mail", "template", "idle_timeout", 201)
    assert (first.deliveries, first.last_seen_ms) == (1, 1001)
    with due_sync(url, group="g", consumer="c") as followups:
        assert followups.poll() is None
    with due_sync(url, group="late", consumer="c", after=None) as followups:
        assert followups.poll() is None
    assert shard.client.xlen(shard.keys.followups(0)) == 2


def test_a_follow_up_that_keeps_failing_becomes_a_dead_letter_with_its_error(
    shard: Shard, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with due_sync(url, group="g", consumer="c", max_deliveries=2, claim_idle=0.001) as followups:
        while not shard.client.xlen("presence:{0}:followups:dead"):
            if (followup := followups.poll()) and users([followup]) == ["ann"]:
                followups.nak(followup, 0.001, "no such address")
    letters: Any = shard.client.xrange("presence:{0}:followups:dead")
    ((_, letter),) = letters
    assert (letter[b"uid"], letter[b"error"], letter[b"group"]) == (b"ann", b"no such address", b"g")
    assert not shard.client.exists("presence:{0}:dead"), "that stream is for events"
    assert caplog.messages == [
        "gave up follow-up mail:ann:1001 of shard 0 after 2 deliveries: no such address"
    ]


async def test_the_trio_consumer_reads_the_same_follow_ups(shard: Shard, url: str) -> None:
    with trio.fail_after(10):
        async with due(url, group="g", consumer="c") as followups:
            assert users([await anext(followups) for _ in range(2)]) == shard.delivered_to()
