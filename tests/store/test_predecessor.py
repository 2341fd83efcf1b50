"""What a dead server left in Redis, met by its successor: it must not cost a live client its session."""

from collections.abc import Iterator

import pytest

from tests.store.driving import check_alternation, events, online_sessions
from tests.store.nodes import ManualNode
from tests.store.servers import Server


def nobody(_node: str) -> bool:
    return False


@pytest.fixture
def successor(server: Server) -> Iterator[ManualNode]:
    """A node that takes every other for dead, in a Redis where `old` still owns the session of u1."""
    old = ManualNode(server.url, "old")
    old.login("u1")
    old.settle()
    old.store.close()
    node = ManualNode(server.url, "new", alive=nobody, max_items=2)
    node.settle()
    yield node
    node.store.close()


def test_a_registration_takes_the_place_of_a_dead_nodes_session(
    successor: ManualNode, server: Server
) -> None:
    for uid in ("u2", "u3", "u1"):  # the third finds the outbox full, so a resync registers it
        successor.login(uid)
    successor.settle()
    assert successor.outbox.statistics().dropped_total == 1
    assert successor.superseded == []
    assert online_sessions(server.client) == successor.sessions
    check_alternation(events(server.client))


def test_a_registration_yields_to_a_younger_session(successor: ManualNode, server: Server) -> None:
    for uid in ("u2", "u3", "u1"):
        successor.login(uid)
    successor.now += 5.0
    other = ManualNode(server.url, "younger")
    other.now = successor.now
    other.login("u1")
    other.settle()
    other.store.close()
    successor.settle()
    assert [each.uid for each in successor.superseded] == ["u1"]
