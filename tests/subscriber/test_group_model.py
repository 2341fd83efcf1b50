"""The promises of a consumer group hold in random runs of its model, and planted faults are found."""

import logging
from typing import Any

import pytest

from presence.store.redis_client import Redis
from presence.subscriber.pending_entries import HANDED_BACK, PendingEntries
from tests.subscriber.group_model import CLAIM_IDLE_S, Broken, World, planted_calls, run

STEPS = 300


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Discard thousands of warnings."""
    caplog.set_level(logging.CRITICAL, "presence.subscriber")


@pytest.mark.parametrize("seed", range(4))
def test_the_promises_hold(url: str, client: Redis, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    run(url, client, monkeypatch, seed=seed, steps=STEPS)


def find(url: str, client: Redis) -> str:
    """Return what the model says about a planted fault."""
    for seed in range(20):
        with pytest.MonkeyPatch.context() as patch:
            try:
                run(url, client, patch, seed=seed, steps=STEPS)
            except Broken as broken:
                return str(broken)
    pytest.fail("not found")


def test_a_stop_that_hands_nothing_back_is_found(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PendingEntries, "hand_back", lambda *_: None)
    assert "came before" in find(url, client)


def test_reading_ahead_that_counts_as_a_delivery_is_found(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_back = PendingEntries.hand_back

    def counting(pending: PendingEntries, clients: Any, shards: Any, *more: Any) -> None:
        hand_back(pending, clients, shards, *more)
        for key in map(pending._shards.keys.events, shards):
            rows: Any = client.xpending_range(key, "g", "-", "+", 1000, consumername=HANDED_BACK)
            for row in rows:
                count, idle_ms = row["times_delivered"] + 1, row["time_since_delivered"]
                client.xclaim(
                    key, "g", HANDED_BACK, 0, [row["message_id"]], idle=idle_ms, retrycount=count, justid=True
                )

    monkeypatch.setattr(PendingEntries, "hand_back", counting)
    assert "deliveries" in find(url, client) or "dead letter" in find(url, client)


def test_a_delayed_event_is_renewed_while_others_are_read_and_handled(
    url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted_calls(monkeypatch) as worlds:
        world = World(url, client, seed=0)
        worlds.append(world)
        one = world.open("pod-1")
        (refused,) = world.streams.write("ann")
        world.take(one, 1)
        one.subscription.nak(one.hand.pop(refused), 10 * CLAIM_IDLE_S, "later")
        for _ in range(20):
            world.advance(CLAIM_IDLE_S / 10)
            world.streams.write("bob")
            world.take(one, 10)
        assert world.take(world.open("pod-2"), 10) == []
