"""Moves clients from loaded nodes to others without an event: plan, orders and progress; calls block.

A client that is sent away logs in through whatever spreads connections: a load balancer, several addresses of
a name, the kernel. It cannot be sent to a certain node, so a loaded node sends away what it has above the
mean, and after each step of some seconds the counts decide again. A balancer that prefers the least loaded
node fills it with exactly those; with one that chooses at random a share comes back to loaded nodes, and more
have to go (`forecast`). No client is sent away twice, see `presence.server.rebalancer`.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from presence.reader import PresenceReader
from presence.store.control_messages import MAX_COMMAND_CHARS, MAX_ORDER_S, RebalanceOrder, rebalance_text
from presence.store.node_states import NodeState
from presence.store.shard_clients import ShardClients

RATE_PER_S: Final = 20.0  # of a node: some 3 % of a core for logins over TLS
TOLERANCE: Final = 0.1  # of the mean
STEP_S: Final = 5.0  # between two looks at the counts: clients are back within two or three
STEP_LEASES: Final = 0.25  # a step is no shorter than two renewals of a lease, which bring the counts
SPARE: Final = 1.25  # times the forecast, because clients choose at random
SPARE_STEPS: Final = 3  # and more: for clients on their way, the first counts and the last
MAX_IDLE_STEPS: Final = 2  # without a client sent away: none is left
MAX_FORECAST_STEPS: Final = 5000  # seven hours: 20,000 clients of a node at one per second

Counts = Mapping[str, int]
"""Connections by node."""


class UnderWay(Exception):
    """Another call is under way; the text names it."""


class Stopped(Exception):
    """An operator has stopped this call, or no node obeys it any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call will do."""

    counts: Counts  # of the nodes that serve, and can send clients away
    unable: Counts  # of those whose version cannot
    rate: float  # of each node, clients per second at most
    tolerance: float  # of the mean
    least: Counts  # clients that a node sends away, if a balancer chooses the least loaded node
    most: Counts  # if it chooses at random
    step_s: float  # seconds from one order to the next
    longest_s: float  # then the call ends, whatever it has reached

    @property
    def mean(self) -> float:
        return mean(self.counts)

    @property
    def is_needed(self) -> bool:
        """Whether a node differs by more than the tolerance."""
        return spread(self.counts) > self.tolerance


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a call is, or how it has ended."""

    took_s: float
    sent_away: int  # by all nodes
    counts: Counts

    @property
    def spread(self) -> float:
        return spread(self.counts)


def mean(counts: Counts) -> float:
    return sum(counts.values()) / len(counts) if counts else 0.0


def spread(counts: Counts) -> float:
    """Return by which share of the mean the node differs that differs most."""
    middle = mean(counts)
    return max((abs(each - middle) for each in counts.values()), default=0.0) / middle if middle else 0.0


def excess(counts: Counts) -> dict[str, int]:
    """Return how many clients each loaded node has above the mean."""
    middle = mean(counts)
    return {node: math.ceil(count - middle) for node, count in counts.items() if count > middle}


class Forecast(NamedTuple):
    sent: dict[str, int]  # clients that each node sends away
    steps: int


def forecast(counts: Counts, at_most: int, goal: float) -> Forecast:
    """Return what it takes until the spread is `goal`, if clients return at random.

    `at_most`: clients that a node sends away in a step.
    """
    now, sent = dict(counts), dict.fromkeys(counts, 0)
    steps = 0
    while spread(now) > goal and steps < MAX_FORECAST_STEPS:
        leaving = {node: min(clients, at_most) for node, clients in excess(now).items()}
        share, rest = divmod(sum(leaving.values()), len(now))
        for number, node in enumerate(sorted(now, key=now.__getitem__)):
            away = leaving.get(node, 0)
            sent[node] += away
            now[node] += share + (number < rest) - away
        steps += 1
    return Forecast({node: min(clients, counts[node]) for node, clients in sent.items()}, steps)


def make_plan(nodes: Collection[NodeState], rate: float, tolerance: float) -> Plan:
    """Return the plan for the nodes that serve."""
    serving = [each for each in nodes if serves(each)]
    counts = {each.node: each.connections or 0 for each in serving if is_able(each)}
    unable = {each.node: each.connections or 0 for each in serving if not is_able(each)}
    lease_s = max((each.setting("lease") or 0.0 for each in serving), default=0.0)
    step_s = min(MAX_ORDER_S, max(STEP_S, STEP_LEASES * lease_s))
    most = forecast(counts, math.ceil(rate * step_s), tolerance / 2)
    longest_s = math.ceil((SPARE * most.steps + SPARE_STEPS) * step_s)
    return Plan(counts, unable, rate, tolerance, excess(counts), most.sent, step_s, longest_s)


def serves(node: NodeState) -> bool:
    """Whether a node is one that clients are spread over."""
    return node.status == "alive" and node.readiness == "ready" and node.connections is not None


def is_able(node: NodeState) -> bool:
    """Whether a node's version can send clients away."""
    return node.sent_away is not None


class Mover:
    """One call; from one thread.

    Args:
        url, prefix: see `PresenceReader`.
        by: the caller, for the nodes' logs.

    Raises:
        ValueError: the URL is invalid.
    """

    def __init__(self, url: str, *, prefix: str = "presence", by: str = "") -> None:
        self.command = f"{by[: MAX_COMMAND_CHARS // 2]} {secrets.token_hex(4)}"
        self._reader = PresenceReader(url, prefix=prefix)
        self._access = ShardClients(url)
        self._sent_before: dict[str, int] = {}

    def plan(self, rate: float = RATE_PER_S, tolerance: float = TOLERANCE) -> Plan:
        """Return what a call would do now.

        Raises:
            RedisError: Redis does not answer.
            UnderWay: another call is under way.
        """
        return make_plan(self._nodes(), rate, tolerance)

    def move(self, plan: Plan, report: Callable[[Standing], object] = lambda _: None) -> Standing:
        """Have nodes send clients away until their counts are even, or `Plan.longest_s` are over.

        Or until no node has a client left that it may send away, because all have moved once. Nodes are
        stopped however it ends.

        Args:
            plan: of a moment ago.
            report: called after each step.

        Raises:
            RedisError: Redis does not answer.
            UnderWay, Stopped: see there.
        """
        begun, ordered = time.monotonic(), set[str]()
        sent_away, idle_steps = -1, 0
        ends_at = begun + plan.longest_s - plan.step_s  # the last step is for clients on their way
        try:
            while True:
                nodes = self._nodes()
                if ordered and not any(each.rebalance for each in nodes if each.node in ordered):
                    raise Stopped("no node obeys it any more: it was stopped, or the nodes have ended")
                now = time.monotonic()
                done = self._standing(nodes, now - begun)
                if ordered:
                    report(done)
                idle_steps = idle_steps + 1 if done.sent_away == sent_away else 0
                sent_away = done.sent_away
                if done.spread <= plan.tolerance / 2 or now >= ends_at or idle_steps == MAX_IDLE_STEPS:
                    break
                ordered |= self._order(done, plan)
                self._access.pause(min(plan.step_s, ends_at - now))
        finally:
            self._stop(ordered, self.command)
        self._access.pause(plan.step_s)
        return self._standing(self._nodes(), time.monotonic() - begun)

    def stop_others(self) -> set[str]:
        """Stop the calls that are under way; return their names."""
        nodes = [each for each in self._reader.nodes() if each.status == "alive"]
        self._stop([each.node for each in nodes], "")
        return {each.rebalance for each in nodes if each.rebalance}

    def _nodes(self) -> list[NodeState]:
        nodes = self._reader.nodes()
        for each in nodes:
            if each.status == "alive" and each.rebalance not in {None, self.command}:
                raise UnderWay(str(each.rebalance))
        return nodes

    def _standing(self, nodes: Collection[NodeState], took_s: float) -> Standing:
        sent = {each.node: each.sent_away for each in nodes if each.sent_away is not None}
        self._sent_before = sent | self._sent_before
        counts = {each.node: each.connections or 0 for each in nodes if serves(each) and is_able(each)}
        return Standing(took_s, sum(n - self._sent_before[node] for node, n in sent.items()), counts)

    def _order(self, done: Standing, plan: Plan) -> set[str]:
        """Order loaded nodes to send clients away during the next step; return the nodes."""
        at_most = math.ceil(plan.rate * plan.step_s)
        orders = {
            node: RebalanceOrder(self.command, min(clients, at_most), plan.step_s, done.took_s)
            for node, clients in excess(done.counts).items()
        }
        self._publish({node: rebalance_text(order) for node, order in orders.items()})
        return {*orders}

    def _stop(self, nodes: Collection[str], command: str) -> None:
        text = rebalance_text(RebalanceOrder(command, 0, MAX_ORDER_S, 0.0))
        self._publish(dict.fromkeys(nodes, text))

    def _publish(self, texts: Mapping[str, str]) -> None:
        keys = self._reader.keys()
        if texts:
            with self._access.at(keys.meta).pipeline(transaction=False) as pipe:
                for node, text in texts.items():
                    pipe.publish(keys.control_channel(node), text)
                pipe.execute()

    def close(self) -> None:
        self._reader.close()
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
