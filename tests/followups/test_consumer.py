"""Reading what is due in a group: at least once, and what fails again and again is put aside."""

import itertools
from typing import Any

import pytest
import trio

from presence.followups import FollowUp, due, due_sync
from presence.subscriber import group
from tests.followups.shards import Shard

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "BLOCK_MS", 20)


@pytest.fixture
def told(shard: Shard) -> Shard:
    """A shard where two follow-ups have been told."""
    event = shard.goes("ann")
    assert event
    shard.goes("bob")
    shard.run_scheduler()
    shard.run_scheduler(after_ms=MINUTE_MS * 2)
    return shard


def users(some: list[Any]) -> list[str]:
    return [each.uid for each in some if isinstance(each, FollowUp)]


def test_a_group_begins_with_all_that_is_kept_and_goes_on_where_it_was(told: Shard, url: str) -> None:
    with due_sync(url, group="g", consumer="c") as followups:
        first, second = itertools.islice(followups, 2)
        followups.acknowledge()
    assert users([first, second]) == ["ann", "bob"]
    assert isinstance(first, FollowUp)
    assert (first.name, first.payload, first.reason, first.code) == ("mail", "template", "idle_timeout", 201)
    assert (first.deliveries, first.last_seen_ms) == (1, 1001)
    with due_sync(url, group="g", consumer="c") as followups:
        assert followups.poll() is None
    with due_sync(url, group="late", consumer="c", after=None) as followups:
        assert followups.poll() is None
    assert told.client.xlen(told.keys.followups(0)) == 2


def test_what_fails_again_and_again_is_put_aside_with_what_went_wrong(told: Shard, url: str) -> None:
    with due_sync(url, group="g", consumer="c", max_deliveries=2, claim_idle_s=0.001) as followups:
        while not told.client.xlen("presence:{0}:followups:dead"):
            if (followup := followups.poll()) and users([followup]) == ["ann"]:
                followups.fail("no such address")
    letters: Any = told.client.xrange("presence:{0}:followups:dead")
    ((_, letter),) = letters
    assert (letter[b"uid"], letter[b"error"], letter[b"group"]) == (b"ann", b"no such address", b"g")
    assert not told.client.exists("presence:{0}:dead"), "which is for events"


async def test_the_same_with_trio(told: Shard, url: str) -> None:
    with trio.fail_after(10):
        async with due(url, group="g", consumer="c") as followups:
            assert users([await anext(followups) for _ in range(2)]) == told.told_to()
