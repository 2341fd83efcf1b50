"""A hundred thousand users go offline at once, on a real server."""

import resource
import time

from tests.store.nodes import ManualNode
from tests.store.servers import Server
from tests.store.test_recovery import make_node, node

__all__ = ["make_node", "node"]  # fixtures


def test_a_hundred_thousand_offline_transitions(node: ManualNode, server: Server) -> None:
    for i in range(100_000):
        node.login(f"user{i}")
    node.settle()
    for i in range(100_000):
        node.end(f"user{i}")
    assert node.live == {}
    cpu, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    while node.round():
        pass
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    print(f"100,000 offline transitions: {took:.2f} s, {used:.2f} s of Python's CPU")
    assert server.client.xlen(node.keys.events(0)) == 200_000
    assert server.client.hlen(node.keys.online(0)) == 0
    assert node.outbox.held == 0
