"""A slow consumer that lives is not robbed of its events."""

import time

import pytest

from presence.store.redis_client import Redis
from presence.subscriber.pending_entries import PendingEntries
from tests.subscriber.streams import Streams, uids
from tests.subscriber.test_group import consumer


def doubled_by_a_slow_consumer(url: str, streams: Streams) -> int:
    """A consumer is 2 s behind what it read ahead, another one claims after 1 s; return the duplicates."""
    streams.create_group()
    names = [f"u{n}" for n in range(20)]
    streams.write(*names)
    handled: list[str] = []
    with consumer(url, "slow", claim_idle=1.0) as slow, consumer(url, "idle", claim_idle=1.0) as idle:
        while len(set(handled)) < len(names):
            handled += uids([event for event in (slow.poll(),) if event])
            time.sleep(0.1)
            if len(handled) % 10 == 0:
                handled += uids([event for event in (idle.poll(),) if event])
    return len(handled) - len(names)


def test_a_slow_consumer_that_lives_is_not_robbed_of_what_it_read_ahead(url: str, client: Redis) -> None:
    assert doubled_by_a_slow_consumer(url, Streams(client)) == 0


def test_without_renewal_it_would_be_robbed(url: str, client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingEntries, "renew", lambda _self, _clients, kept: {*kept})
    assert doubled_by_a_slow_consumer(url, Streams(client)) > 0
