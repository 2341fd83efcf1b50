"""The verdict of a run with its reasons, and a report in JSON for other programs.

Tests: `tests/system/loadtest/test_locust.py`.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from locust.stats import RequestStats, StatsEntry, StatsError

from presence.loadtest.options import exceeded_limits, unjudged_scenario

EXAMPLES_KEPT = 5  # of each broken promise
ERRORS_NAMED = 5  # in the reasons; the report has all


class Examples:
    """Some cases of each broken promise, by its words. A worker's are sent to the master."""

    def __init__(self) -> None:
        self._cases: dict[str, list[str]] = {}

    def add(self, words: str, cases: Iterable[str]) -> None:
        kept = self._cases.setdefault(words, [])
        kept += [*cases][: EXAMPLES_KEPT - len(kept)]

    def of(self, words: str) -> list[str]:
        return self._cases.get(words, [])

    def take(self) -> dict[str, list[str]]:
        """Return all, and forget them."""
        taken, self._cases = self._cases, {}
        return taken


def failure_reasons(stats: RequestStats, options: Any) -> list[str]:
    """Return why a run fails, the most frequent errors first; empty if it passes."""
    reasons = exceeded_limits(stats.entries, stats.total.num_failures, options)
    login = stats.entries.get(("login", "device"))
    if login is None or login.num_requests == login.num_failures:
        reasons.append("no device logged in")
    else:
        reasons += unjudged_scenario(stats.entries, options)
        if not options.no_events and ("online", "event") not in stats.entries:
            reasons.append("no event of any device was judged: the run was too short, or read nothing")
    if reasons:
        frequent = sorted(stats.errors.values(), key=lambda error: -error.occurrences)
        reasons[:0] = map(_described, frequent[:ERRORS_NAMED])
    return reasons


def write_report(
    path: Path, stats: RequestStats, reasons: list[str], options: Any, examples: Examples, not_due: int
) -> None:
    """Write the report, with the number of offline events that the end of the run left unjudged.

    Times are Unix seconds, and milliseconds in the rows, named as in locust's own.

    Raises:
        OSError: the file cannot be written.
    """
    report = {
        "verdict": "failed" if reasons else "passed",
        "reasons": reasons,
        "scenario": options.scenario,
        "host": options.host,
        "users": options.num_users,
        "started": stats.start_time,
        "ended": stats.last_request_timestamp,
        "failures": stats.total.num_failures,
        "not_due": not_due,
        "rows": [_row(entry) for _, entry in sorted(stats.entries.items())],
        "errors": [_error(error, examples) for error in stats.errors.values()],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def _row(entry: StatsEntry) -> dict[str, Any]:
    row = entry.to_dict()
    return {name: value for name, value in row.items() if not name.startswith(("current", "avg_content"))}


def _error(error: StatsError, examples: Examples) -> dict[str, Any]:
    row: dict[str, Any] = error.to_dict()  # type: ignore[no-untyped-call] # locust's
    return row | {"examples": examples.of(f"{error.name}: {error.error}")}


def _described(error: StatsError) -> str:
    first, last = (
        datetime.fromtimestamp(moment or 0.0, UTC).strftime("%H:%M:%S")
        for moment in (error.first_seen, error.last_seen)
    )
    return f"{error.occurrences:,} x {error.name}: {error.error}, {first} to {last} UTC"
