"""Metrics of the admin process: requests, streams, refusals, actions.

Routes, reasons and outcomes come from fixed tables, so that requests for a million paths do not create a
million series. Everything else counts as `other`.

Tests: `tests/admin/test_http.py`, `tests/admin/test_prometheus.py`.
"""

from collections.abc import Iterable
from typing import Final

from presence.common.histogram import Histogram
from presence.server.process_stats import ProcessStats

OTHER: Final = "other"
ROUTES: Final = (
    "/",
    "/static",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1/presence",
    "/v1/presence/{uid}",
    "/v1/presence/query",
    "/v1/online",
    "/v1/nodes",
    "/v1/events",
    "/v1/live",
    "/v1/kick",
    "/v1/bans",
    "/v1/ban",
    "/v1/unban",
    "/v1/message",
    "/v1/explain",
    "/v1/explain/{uid}",
    "/v1/roster",
    "/v1/roster/{uid}",
    "/v1/rooms",
    "/v1/rooms/{name}",
    OTHER,
)
STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", OTHER)
REFUSALS: Final = (
    "token",  # missing or wrong
    "guesses",  # with a token, of an address that has sent too many wrong ones
    "role",  # may read but not act
    "host",  # a foreign Host header: DNS rebinding
    "origin",  # from another web page
    "content_type",
    "body",
    "uids",
    "messages",  # too many in a request, or per second
    "viewers",
    "connections",  # closed or refused, because all places are taken
    "slow_viewer",
    "slow_request",
    OTHER,
)
VIEWS: Final = ("events", "live")
VERBS: Final = ("kick", "ban", "unban", "message", "roster", OTHER)
OUTCOMES: Final = ("done", "failed", "refused", OTHER)
# From responses out of memory to the time-out of Redis.
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class HttpMetrics:
    """Counters since the start, and gauges; used by one thread.

    Attributes:
        connections: open now.
        viewers: open event streams, by `VIEWS`.
        missed: events not sent to viewers that fell behind.
        requests: by route and class of status.
        refusals: by reason.
        actions: by verb and outcome.
        durations: of requests, seconds.
        process_stats: of this process.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.viewers = dict.fromkeys(VIEWS, 0)
        self.missed = 0
        self.requests = {(route, status): 0 for route in ROUTES for status in STATUSES}
        self.refusals = dict.fromkeys(REFUSALS, 0)
        self.actions = {(verb, outcome): 0 for verb in VERBS for outcome in OUTCOMES}
        self.durations = Histogram(BOUNDS_S)
        self.process_stats = ProcessStats()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request, by the template of its path as in the OpenAPI description.

        `seconds`: until the response was sent; for a stream, its head.
        """
        self.requests[_known(route, ROUTES), _known(f"{status // 100}xx", STATUSES)] += 1
        self.durations.observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a refused request, by a reason of `REFUSALS`."""
        self.refusals[_known(reason, REFUSALS)] += 1

    def count_action(self, verb: str, outcome: str) -> None:
        self.actions[_known(verb, VERBS), _known(outcome, OUTCOMES)] += 1


def _known(value: str, values: Iterable[str]) -> str:
    return value if value in values else OTHER
