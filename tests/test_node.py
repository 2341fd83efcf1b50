"""A whole node, whose calls to Redis are made by hand."""

import json
import math
from typing import Any, cast

import protocol
from presence.clock import Clock
from presence.inquiries import Readiness
from presence.node import Node, Stores
from presence.registry import Peer
from presence.runtime import TrioRuntime
from presence.session import Outcome
from presence.settings import Settings
from presence.shard_writer import BATCH_ITEMS, ShardWriter
from presence.store.batches import Batch, Item
from presence.store.replies import Opened, Reply, Status
from protocol import Packet


class Wire:
    """A connection that is never read and takes whatever it is sent."""

    def hang_up(self, handle: Any, farewell: bytes) -> None: ...
    def send(self, handle: Any, data: bytes) -> None: ...
    def offer(self, handle: Any, data: bytes) -> bool:
        return True

    def look(self, handle: Any) -> bool:
        return True

    def unread_s(self, handle: Any) -> float:
        return 0.0

    def address(self, handle: Any) -> str:
        return ""


class Stub:
    """A way to Redis that this test never goes."""

    def close(self) -> None: ...


def node_of(users: list[str], settings: Settings) -> tuple[Node, dict[str, Peer]]:
    stub = cast(Any, Stub())
    node = Node(settings, 100, Stores(stub, stub, stub), Clock(), TrioRuntime())
    peers: dict[str, Peer] = {}
    for uid in users:
        guest = node.core.opened(Wire(), len(peers))
        peers[uid] = received(node, guest, protocol.login(uid)).peer
    return node, peers


def received(node: Node, peer: Peer, packet: Packet) -> Outcome:
    outcome = node.core.received(peer, protocol.encode(packet))
    assert outcome.end_code is None
    return outcome


def exchange(writer: ShardWriter) -> tuple[Item, ...]:
    """Send what a shard has next to a Redis that takes everything, and return it."""
    while (step := writer.next(1.0)) is None and writer.is_planning:
        pass
    assert isinstance(step, Batch)
    opened = Opened((), {}) if step.opening else None
    writer.accept(step, Reply(Status.OK, "history", opened=opened))
    return step.items


def test_a_registration_shows_an_update_made_after_another_shard_began_its_resync() -> None:
    node, peers = node_of([f"u{n}" for n in range(3 * BATCH_ITEMS)], Settings(shards=2))
    first, second = node.relay.writers
    for writer in (first, second):
        while not writer.is_idle(math.inf):
            exchange(writer)
        writer.resync()
    exchange(first)
    assert len(exchange(first)) == BATCH_ITEMS, "looked for among the sessions of both"
    uid = next(uid for uid in peers if node.keys.shard(uid) == second.shard)
    received(node, peers[uid], protocol.update(meta={"mood": "busy"}, id=1))
    exchange(second)
    shown = [item.change.profile.meta for item in exchange(second) if item.change.uid == uid]
    assert [json.loads(each) for each in shown if each] == [{"mood": "busy"}]


def test_a_node_that_others_took_for_dead_cannot_serve_until_it_has_a_new_id() -> None:
    node, _ = node_of([], Settings())
    node.readiness_told = Readiness.READY
    assert node.readiness() is Readiness.READY
    (writer,) = node.relay.writers
    writer.lost_to_fence = True
    assert node.readiness() is Readiness.FENCED
