"""Tellings beside what users did: pure, times are arguments."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.compare.ledger import Telling
from loadtest.compare.workload import Schedule, percentile

CLOCK_S: Final = 0.001  # Redis counts whole milliseconds: its deadlines are as exact as that


@dataclass(frozen=True)
class Verdict:
    """How well the silent were found.

    Attributes:
        silent: users that fell silent.
        found: of these, told of by the end.
        early: tellings of somebody whose last touch was less than T ago.
        false: tellings of somebody who went on beating.
        doubled: users that were told of more than once.
        p50_ms, p99_ms, max_ms: lateness of the first telling, from T after the last touch.
        least_ms: the least lateness; below 0 would be early.
        late: told later than a slack, for instance because of what was done to the run.
    """

    silent: int
    found: int
    early: int
    false: int
    doubled: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    least_ms: float
    late: int

    @property
    def missed(self) -> int:
        """Silent users of whom nothing was told."""
        return self.silent - self.found


def judge(schedule: Schedule, begin: float, told: Sequence[Telling]) -> Verdict:
    """Return what came of a run.

    Args:
        schedule: what the users did.
        begin: monotonic time of its second 0.
        told: all tellings.
    """
    plan = schedule.plan
    timeout = plan.idle_timeout_s
    silent = {user for user, last in enumerate(schedule.last_beats) if math.isfinite(last)}
    first: dict[int, float] = {}
    early = false = 0
    for each in told:
        late_s = each.silent_s - timeout
        early += late_s < -CLOCK_S
        if each.at - begin < schedule.last_beats[each.user]:
            false += 1
        else:
            first.setdefault(each.user, late_s)
    late_ms = [late_s * 1000 for late_s in first.values()]
    times = Counter(each.user for each in told)
    return Verdict(
        silent=len(silent),
        found=len(first),
        early=early,
        false=false,
        doubled=sum(count > 1 for count in times.values()),
        p50_ms=percentile(late_ms, 0.5),
        p99_ms=percentile(late_ms, 0.99),
        max_ms=max(late_ms, default=math.nan),
        least_ms=min(late_ms, default=math.nan),
        late=sum(each > plan.slack_s * 1000 for each in late_ms),
    )
