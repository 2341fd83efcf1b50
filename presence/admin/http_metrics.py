"""What the process that serves operators counts of itself: requests, streams, refusals, acts.

Routes, reasons and outcomes come from fixed tables: a stranger who asks for a million paths makes no million
series of them. What is in no table counts as `other`.
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
    "/v1/presence/{uid}",
    "/v1/presence/query",
    "/v1/online",
    "/v1/nodes",
    "/v1/events",
    "/v1/live",
    "/v1/kick",
    "/v1/explain/{uid}",
    OTHER,
)
STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", OTHER)
REFUSALS: Final = (
    "token",  # none, or a wrong one
    "guesses",  # wrong ones, while too many others are answered late
    "role",  # of one that may read and not act
    "host",  # the name by which it was asked is not ours: DNS rebinding
    "origin",  # another web page asks
    "content_type",
    "body",
    "uids",
    "viewers",
    "connections",
    "slow_viewer",
    "slow_request",
    OTHER,
)
VIEWS: Final = ("events", "live")
VERBS: Final = ("kick", OTHER)
OUTCOMES: Final = ("done", "failed", "refused", OTHER)
# From what memory answers to what waits for Redis' time-out.
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class HttpMetrics:
    """Counters since the start, and how things stand; used by one thread.

    Attributes:
        connections: open now.
        viewers: event streams that are open now, by what they show: `VIEWS`.
        missed: events that viewers who fell behind were not shown.
        requests: by route and class of status.
        refusals: by reason.
        actions: by verb and outcome.
        durations: how long requests took, seconds.
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
        """Count a request.

        Args:
            route: its template, as the description of the interface has it.
            status: of the answer.
            seconds: until the answer was sent; of a stream, until its head was.
        """
        self.requests[_known(route, ROUTES), _known(f"{status // 100}xx", STATUSES)] += 1
        self.durations.note(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count what a limit or a guard turned away, by a reason of `REFUSALS`."""
        self.refusals[_known(reason, REFUSALS)] += 1

    def count_action(self, verb: str, outcome: str) -> None:
        """Count what an operator did, or tried to."""
        self.actions[_known(verb, VERBS), _known(outcome, OUTCOMES)] += 1


def _known(value: str, values: Iterable[str]) -> str:
    return value if value in values else OTHER
