"""What a run must not exceed, beside broken promises, to end with status 0."""

from collections.abc import Mapping
from typing import Any

ROWS = {"login": "login_p99_max", "keepalive, answered": "answer_p99_max"}


def exceeded(entries: Mapping[tuple[str, str], Any], failures: int, options: Any) -> list[str]:
    """Return in words which limits a run went over.

    Args:
        entries: locust's statistics, by name and type.
        failures: how many there were.
        options: the parsed options; a limit of 0 s is none.
    """
    over = []
    if failures > options.failures_max:
        over.append(f"{failures} failures, {options.failures_max} allowed")
    for name, option in ROWS.items():
        limit_s, entry = getattr(options, option), entries.get((name, "device"))
        if not limit_s or entry is None:
            continue
        p99_ms = entry.get_response_time_percentile(0.99)
        if p99_ms > limit_s * 1000:
            over.append(f"{name}: p99 {p99_ms:.0f} ms, {limit_s * 1000:.0f} allowed")
    return over
