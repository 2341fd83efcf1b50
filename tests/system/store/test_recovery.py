"""A hundred thousand users go offline at once, on a real server."""

from tests.store.nodes import ManualNode
from tests.store.servers import Server


def test_a_hundred_thousand_offline_transitions(server: Server) -> None:
    node = ManualNode(server.url)
    for i in range(100_000):
        node.login(f"user{i}")
    node.settle()
    for i in range(100_000):
        node.end(f"user{i}")
    node.settle()
    node.store.close()
    assert server.client.xlen(node.keys.events(0)) == 200_000
    assert server.client.hlen(node.keys.online(0)) == 0
    assert node.outbox.held == 0
