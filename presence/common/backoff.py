"""When to try again after a failure."""

import random


def backoff_s(failures: int, first_s: float, limit_s: float) -> float:
    """Return the pause after so many failures in a row before this one: doubled each time, up to a limit."""
    return min(limit_s, first_s * 2.0 ** min(failures, 64))


def jittered(delay_s: float) -> float:
    """Return a delay between half of it and all of it: many that failed together come apart."""
    return delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
