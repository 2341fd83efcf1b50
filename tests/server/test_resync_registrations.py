"""Registrations of the sessions of a shard: complete, up to date, and of one pass for shards of one round."""

import json
import math
from collections.abc import Iterator

import pytest

from presence import protocol
from presence.config.settings import Settings
from presence.core.registry import Registry, Session
from presence.outbox.batches import BATCH_ITEMS
from presence.outbox.replies import Opened, Reply, ReplyStatus
from presence.outbox.shard_writer import ShardWriter
from presence.outbox.steps import Batch, Item
from presence.server.resync_registrations import FRESH_S, SharedRegistrations
from presence.store.keys import Keys
from tests.server.test_node_assembly import node_of
from tests.support.worlds import World


def exchange(writer: ShardWriter) -> tuple[Item, ...]:
    """Send a shard's next batch to a Redis that accepts everything, and return it."""
    writer.prepare_step(1.0)
    while writer.needs_another_slice:
        writer.prepare_step(1.0)
    step = writer.next_step(1.0)
    assert isinstance(step, Batch)
    opened = Opened((), {}) if step.opening else None
    writer.accept_reply(step, Reply(ReplyStatus.OK, "history", opened=opened))
    return step.items


def test_registration_includes_an_update_made_after_another_shard_began_its_resync() -> None:
    node, sockets = node_of(Settings(shards=2))
    uids = [f"u{n}" for n in range(3 * BATCH_ITEMS)]
    for uid in uids:
        sockets.feed(sockets.connect(), protocol.encode(protocol.login(uid)))
    first, second = node.relay.writers
    for writer in (first, second):
        while not writer.is_comparable(math.inf):
            exchange(writer)
        writer.request_resync()
    exchange(first)
    assert len(exchange(first)) == BATCH_ITEMS, "found among the sessions of both"
    uid = next(uid for uid in uids if node.keys.shard(uid) == second.shard)
    sockets.feed(uids.index(uid), protocol.encode(protocol.update(meta={"mood": "busy"}, id=1)))
    exchange(second)
    shown = [item.change.profile.meta for item in exchange(second) if item.change.uid == uid]
    assert [json.loads(each) for each in shown if each] == [{"mood": "busy"}]


KEYS = Keys(shards=2)
UIDS = [f"u{n}" for n in range(10)]


class Passes:
    """Registrations of users of two shards, and the number of passes over all sessions that they took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World()
        for uid in UIDS:
            self.world.login(uid)
        self.registrations = SharedRegistrations(self.world.engine, KEYS, self.world.clock)
        self.count = 0
        well = Registry.__iter__

        def counted(registry: Registry) -> Iterator[Session]:
            self.count += 1
            return well(registry)

        monkeypatch.setattr(Registry, "__iter__", counted)

    def uids(self, shard: int) -> list[str]:
        return [change.uid for change in self.registrations.of_shard(shard)]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    return Passes(monkeypatch)


def of_shard(shard: int) -> list[str]:
    return [uid for uid in UIDS if KEYS.shard(uid) == shard]


def test_shards_of_a_round_share_a_pass(passes: Passes) -> None:
    first = passes.registrations.of_shard(0)
    second = passes.registrations.of_shard(1)
    assert [change.uid for change in second] == of_shard(1)
    assert [change.uid for change in first] == of_shard(0)
    assert passes.count == 1


def test_a_shard_that_asks_again_gets_all(passes: Passes) -> None:
    kept = passes.registrations.of_shard(0)
    assert (passes.uids(0), passes.uids(0)) == (of_shard(0), of_shard(0))
    del kept


def test_a_pass_that_is_no_longer_fresh_is_not_shared(passes: Passes) -> None:
    kept = passes.registrations.of_shard(0)
    passes.world.now += 2 * FRESH_S
    assert passes.uids(1) == of_shard(1)
    assert passes.count == 2
    del kept


def test_a_login_since_the_pass_began_is_registered(passes: Passes) -> None:
    kept = passes.registrations.of_shard(0)
    late = next(uid for uid in ("late", "later", "latest") if KEYS.shard(uid) == 1)
    passes.world.login(late)
    assert passes.uids(1) == [*of_shard(1), late]
    del kept
