"""A node without sockets: how settings reach its parts, and whether it can serve."""

from typing import Any, cast

import pytest

from presence import protocol
from presence.common.clock import Clock
from presence.common.runtime import TrioRuntime
from presence.config.settings import Settings
from presence.server.node_assembly import (
    Node,
    Stores,
)
from presence.server.readiness import Readiness
from tests.support.worlds import FakeSockets


class Stub:
    """A Redis connection that this test never uses."""

    def close(self) -> None: ...


def node_of(settings: Settings, clock: Clock | None = None) -> tuple[Node, FakeSockets]:
    stub, sockets = cast(Any, Stub()), FakeSockets()
    node = Node(settings, 100, Stores(stub, stub, stub), clock or Clock(), TrioRuntime())
    sockets.engine = node.engine
    return node, sockets


def test_bursts_and_the_rate_of_connections_follow_from_the_rates() -> None:
    now = 0.0
    admission = node_of(Settings(login_rate=3), Clock(lambda: now))[0].admission
    for now, accepted in ((0.0, 12), (1.0, 6)):  # noqa: B007 - the clock reads it
        answers = [admission.admit_connection(0) for _ in range(20)]
        assert answers.count(None) == accepted
    limiter = node_of(Settings(packet_rate=7))[0].engine.packet_rate
    assert limiter is not None
    assert limiter.count_packets("ann", 70, now) is None
    assert limiter.count_packets("ann", 1, now) is not None


@pytest.mark.parametrize(
    ("rates", "burst"),
    [
        ({"login_rate": 3}, 12),
        ({"address_login_rate": 2, "uid_login_rate": 0}, 200),
        ({"uid_login_rate": 3}, 300),
    ],
)
def test_the_burst_of_logins_follows_from_their_rate(rates: dict[str, Any], burst: int) -> None:
    admission = node_of(Settings(**rates), Clock(lambda: 0.0))[0].admission
    assert [admission.admit_login("192.0.2.1", "ann") for _ in range(500)].count(None) == burst


@pytest.mark.parametrize(("rooms", "joined"), [("off", ""), ("open", "lobby")])
def test_clients_are_in_rooms_where_the_setting_allows_it(rooms: str, joined: str) -> None:
    node, sockets = node_of(Settings(rooms=rooms))
    sockets.feed(sockets.connect(), protocol.encode(protocol.login("ada", rooms=["lobby"])))
    (session,) = node.engine.registry
    assert node.engine.registry.profiles.get(session.number).rooms == joined


@pytest.mark.parametrize(("connections", "changes"), [(100, 100_000), (60_000, 120_000)])
def test_the_bound_of_the_outbox_follows_from_the_connections(connections: int, changes: int) -> None:
    stub = cast(Any, Stub())
    node = Node(Settings(), connections, Stores(stub, stub, stub), Clock(), TrioRuntime())
    bounds = node.outbox.statistics()
    assert (bounds.max_items, bounds.max_bytes) == (changes, 512 * changes)


def test_fenced_node_cannot_serve_until_it_has_a_new_id() -> None:
    node, _ = node_of(Settings())
    node.declared_readiness = Readiness.READY
    assert node.readiness() is Readiness.READY
    node.relay.mark_fenced(node.relay.node)
    assert node.readiness() is Readiness.FENCED
