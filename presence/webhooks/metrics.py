"""Metrics of a runner, for Prometheus; `docs/webhooks.md` lists them."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from presence.subscriber.events import Entry, Item
from presence.webhooks.receiver import Failure

_REQUEST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DELAY_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


class RunnerMetrics:
    """All metrics of one runner, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "presence_webhook_requests_total",
            "Requests by result: accepted, refused, or receiver_away",
            ["result"],
            registry=self.registry,
        )
        self.events = Counter(
            "presence_webhook_events_total",
            "Events by what became of them: accepted, skipped, or dead_letter",
            ["result"],
            registry=self.registry,
        )
        self.request_s = Histogram(
            "presence_webhook_request_seconds",
            "Duration of requests",
            buckets=_REQUEST_S,
            registry=self.registry,
        )
        self.delay_s = Histogram(
            "presence_webhook_delay_seconds",
            "From the server's decision to the acceptance of the event",
            buckets=_DELAY_S,
            registry=self.registry,
        )
        self.shards = Gauge(
            "presence_webhook_shards", "Shards that this runner sends", registry=self.registry
        )

    def note_request(self, failure: Failure | None, duration_s: float) -> None:
        """Count a request."""
        result = "accepted" if failure is None else "receiver_away" if failure.is_away else "refused"
        self.requests.labels(result).inc()
        self.request_s.observe(duration_s)

    def note_accepted(self, items: Sequence[Item], wall_s: float) -> None:
        """Count the events of an accepted request; `wall_s`: Unix seconds now."""
        self.events.labels("accepted").inc(len(items))
        for item in items:
            if isinstance(item, Entry) and (at_ms := item.fields.get("at_ms", "")).isdigit():
                self.delay_s.observe(max(0.0, wall_s - int(at_ms) / 1000))
