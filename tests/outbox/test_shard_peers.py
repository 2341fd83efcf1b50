"""Which other nodes of a shard may be alive."""

import pytest

from presence.outbox.replies import PeerTrace
from presence.outbox.shard_peers import ShardPeers

LIVING, FENCED = PeerTrace(3, True, False), PeerTrace(3, True, True)


def traced(nodes: str) -> dict[str, PeerTrace]:
    return {each.lower(): FENCED if each.isupper() else LIVING for each in nodes}


# The traces seen, those at the last `remember`, both as letters, fenced ones in upper case; then lease
# holders, the nodes that are alive, and those that count as peers.
@pytest.mark.parametrize(
    ("seen", "remembered", "leases", "alive", "peers"),
    [
        ("", "", "", "abc", ""),
        ("ab", "", "", "abc", "ab"),
        ("ab", "", "", "b", "b"),
        ("aB", "", "", "abc", "a"),
        ("", "a", "", "abc", "a"),  # Redis may have lost its trace
        ("A", "a", "", "abc", ""),  # fenced since
        ("", "", "c", "abc", "c"),  # it has no trace yet
        ("C", "", "c", "abc", ""),
        ("", "", "c", "ab", ""),
    ],
)
def test_peers_have_a_trace_or_a_lease_and_are_alive_and_not_fenced(
    seen: str, remembered: str, leases: str, alive: str, peers: str
) -> None:
    shard = ShardPeers(lambda node: node in alive, lambda: leases)
    shard.traces = traced(remembered)
    shard.remember()
    shard.traces = traced(seen)
    assert shard.alive() == {*peers}


def test_a_lease_holder_counts_until_the_next_remember_or_until_it_is_forgotten() -> None:
    leases = ["b", "c"]
    shard = ShardPeers(lambda _node: True, lambda: leases)
    shard.remember()
    leases.clear()
    assert shard.alive() == {"b", "c"}
    shard.forget("b")
    assert shard.alive() == {"c"}
    shard.remember()
    assert shard.alive() == set()


@pytest.mark.parametrize(
    ("traces", "alive", "only_traces"),
    [
        ({}, "", False),
        ({"b": LIVING}, "", True),
        ({"b": LIVING, "c": LIVING}, "c", False),
        ({"b": FENCED}, "", False),  # it is being swept
    ],
)
def test_only_traces_are_left_of_nodes_that_are_gone_but_not_fenced(
    traces: dict[str, PeerTrace], alive: str, *, only_traces: bool
) -> None:
    shard = ShardPeers(lambda node: node in alive)
    shard.traces = traces
    assert shard.only_traces() is only_traces


@pytest.mark.parametrize(
    ("before", "now", "is_lost"),
    [
        ("aB", "aB", False),
        ("ab", "aB", False),  # fenced since
        ("aB", "a", False),  # swept
        ("aB", "ab", True),
        ("BC", "bC", True),
    ],
)
def test_a_fence_is_lost_if_a_node_that_had_it_is_not_fenced(before: str, now: str, *, is_lost: bool) -> None:
    shard = ShardPeers(lambda _node: True)
    shard.traces = traced(before)
    assert shard.has_lost_fence(traced(now)) is is_lost
