"""Scrapes made for tests, and a parser of the Prometheus format."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from presence.admin.http_metrics import HttpMetrics
from presence.admin.prometheus import Scrape
from presence.admin.workers import WorkerAnswer
from presence.config.settings import Settings
from presence.store.node_states import NodeState, NodeStatus

REDIS = {
    "status": "ok",
    "ping_ms": 0.5,
    "used_memory_bytes": 1_000_000,
    "maxmemory_bytes": 2_000_000,
    "clients": 7,
    "evicted_keys": 0,
}


def sample(**given: Any) -> dict[str, Any]:
    """Return some of a worker's metrics; its other services are off."""
    histogram = {"bounds": [0.5, 1.0], "counts": [3, 2, 1], "sum": 4.5}
    return {
        "node": "node-1",
        "address": "127.0.0.1:7400",
        "version": "1.2.3",
        "readiness": "ready",
        "connections": 4,
        "sessions": 5,
        "started_ms": 1_500,
        "core": {"logins": 9, "keepalives": 100, "other_packets": 20, "refused": {"busy": 2}, "ended": {}},
        "transitions": {"online": {"login": 7}, "offline": {}, "away": {}, "update": {}, "gap": {}},
        "relay": {"connected": True},
        "wheel": {"slot_s": 0.5, "next_s": 0.1, "sizes": [1, 3, 0], "later": 2},
        "histograms": {"detection_delay": histogram},
        **given,
    }


def scrape(*samples: dict[str, Any] | None, **given: Any) -> Scrape:
    """Return a scrape of workers 1, 2, … with these samples; None: the worker does not answer."""
    answers = [WorkerAnswer(number, sample, 100.0) for number, sample in enumerate(samples, 1)]
    found: dict[str, Any] = {
        "answers": answers,
        "now": 100.5,
        "settings": Settings(),
        "online": 12,
        "nodes": [node("alive"), node("silent")],
        "redis": REDIS,
        "http": HttpMetrics(),
    }
    return Scrape(**(found | given))


def node(status: NodeStatus) -> NodeState:
    return NodeState(node="n", status=status, lease_left_s=None, sweeper=None)


Found = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Series, by name and labels."""


def parsed(text: str) -> Found:
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def value(found: Found, name: str, **labels: str) -> float | None:
    """Return the value of a series; `name` without its prefix."""
    return found.get((f"presence_{name}", frozenset(labels.items())))
