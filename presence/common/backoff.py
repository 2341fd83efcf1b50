"""Exponential backoff and jitter.

Tests: `tests/common/test_circuit_breaker.py`.
"""

import random


def backoff_s(failures: int, first_s: float, limit_s: float) -> float:
    """Return the pause after a failure that follows `failures` others: doubled each time, up to a limit."""
    return min(limit_s, first_s * 2.0 ** min(failures, 64))


def jittered(delay_s: float) -> float:
    """Return a random delay between half of it and all of it, to spread clients that failed together."""
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
