"""Strangers by the thousand who say nothing, or a byte a second: closed in time, and logins are not slower.

On a machine of few cores whoever makes the load takes time from whoever serves. So each run has its control:
the same strangers come to another server on the same machine while the same users log in to this one. What
the first takes longer than the second is what strangers cost within a server. Runs alternate; the verdict is
the median of the pairs' ratios.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain

from loadtest.hostile.stage import login
from loadtest.hostile.strangers import LATE_S
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, running
from loadtest.security.apart import processes
from loadtest.security.attempts import GRANTED, Attempt, Plain, attempts
from loadtest.security.attempts import Plan as Logins
from loadtest.security.samples import Ratios, Spread
from loadtest.security.strangers import Habit, Stranger, strangers
from loadtest.security.strangers import Plan as Crowd
from presence.embedded import embedded_redis
from protocol import Code

LOGIN_TIMEOUT_S = 5.0
SLOWER_MAX = 1.1
LEAD_S = 0.5  # from an order to the first connection
SETTLE_S = 1.5  # between two runs
HABITS = (Habit(), Habit(drip=login("u" * 100)))


@dataclass(frozen=True)
class Sizes:
    """How much is done.

    Attributes:
        strangers, per_second: who come to a run, and how many of them in a second.
        logins: by those who behave, in a second.
        pairs: of runs.
        workers: of each of the two servers.
    """

    strangers: int = 10_000
    per_second: float = 2500.0
    logins: float = 300.0
    pairs: int = 10
    workers: int = 2

    @property
    def seconds(self) -> float:
        """How long strangers are there in a run."""
        return self.strangers / self.per_second + LOGIN_TIMEOUT_S + LATE_S


@dataclass
class Found:
    """What was seen: strangers at the server, and the times of logins beside them, elsewhere, and without."""

    strangers: list[Stranger] = field(default_factory=list)
    beside: list[list[float]] = field(default_factory=list)
    elsewhere: list[list[float]] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    refused: int = 0

    def ratios(self) -> Ratios:
        """How many times as long the 99th percentile is beside strangers as with them elsewhere, by pairs."""
        return Ratios.of(
            Spread.of(beside).p99 / Spread.of(elsewhere).p99
            for beside, elsewhere in zip(self.beside, self.elsewhere, strict=True)
        )


class Field:
    """Two servers, and processes that make load for them."""

    def __init__(self, sizes: Sizes, servers: list[Serving], pool: ProcessPoolExecutor) -> None:
        self._sizes = sizes
        self._here, self._there = (server.address for server in servers)
        self._pool = pool
        self._turn = 0

    def run(self, at: tuple[str, int] | None) -> tuple[list[Attempt], list[Stranger]]:
        """Let strangers come to a server, to none with None, while users log in to the first."""
        sizes, begin = self._sizes, time.monotonic() + LEAD_S
        count = int(sizes.seconds * sizes.logins)
        self._turn += 1
        plan = Logins(self._here, Plain(f"honest{self._turn}"), count, sizes.logins, begin)
        honest = self._pool.submit(attempts, plan)
        come: list[Stranger] = []
        if at is not None:
            crowd = Crowd(at, HABITS, sizes.strangers, sizes.per_second, LOGIN_TIMEOUT_S + 2 * LATE_S, begin)
            come = self._pool.submit(strangers, crowd).result()
        logins = honest.result()
        time.sleep(SETTLE_S)
        return logins, come

    def play(self) -> Found:
        """Play all runs."""
        found = Found()
        found.without = self._times(found, self.run(None)[0])
        for pair in range(self._sizes.pairs):
            for is_here in (True, False) if pair % 2 else (False, True):
                logins, come = self.run(self._here if is_here else self._there)
                (found.beside if is_here else found.elsewhere).append(self._times(found, logins))
                found.strangers += come if is_here else []
            say(f"pair {pair + 1} of {self._sizes.pairs}: {found.ratios()}")
        found.without += self._times(found, self.run(None)[0])
        return found

    @staticmethod
    def _times(found: Found, logins: list[Attempt]) -> list[float]:
        found.refused += sum(each.code != GRANTED for each in logins)
        return [each.took_s for each in logins]


@contextmanager
def _field(sizes: Sizes) -> Iterator[Field]:
    flags = (
        "--workers",
        str(sizes.workers),
        "--login-timeout",
        str(LOGIN_TIMEOUT_S),
        "--disconnect-grace",
        "0",
    )
    with embedded_redis() as one, embedded_redis() as other, processes(2) as pool:
        starts = [lambda url=redis.url: Serving(url, *flags) for redis in (one, other)]
        with running(starts) as servers:
            yield Field(sizes, servers, pool)


def silent(sizes: Sizes) -> Outcome:
    """Let strangers come and wait."""
    with _field(sizes) as field_:
        return judge(field_.play(), sizes)


def judge(found: Found, sizes: Sizes) -> Outcome:
    """Hold what was seen against what is promised."""
    lived = [each.lived_s for each in found.strangers]
    alive = sum(time_s > LOGIN_TIMEOUT_S + LATE_S for time_s in lived)
    early = sum(time_s < LOGIN_TIMEOUT_S for time_s in lived)
    unnamed = sum(each.code != Code.LOGIN_TIMEOUT for each in found.strangers)
    ratios = found.ratios()
    beside, elsewhere = (Spread.of([*chain(*runs)]) for runs in (found.beside, found.elsewhere))
    without = Spread.of(found.without)
    broken = [f"{alive} of {len(lived)} were open at {LOGIN_TIMEOUT_S + LATE_S:g} s"] if alive else []
    broken += [f"{early} were closed too early"] if early else []
    broken += [f"{unnamed} were not told why"] if unnamed else []
    broken += [f"{found.refused} logins of users were not granted"] if found.refused else []
    if not ratios.median <= SLOWER_MAX:
        broken.append(f"p99 of logins {ratios.median:.3f} times as long, {SLOWER_MAX} allowed")
    most = max((time_s for time_s in lived if time_s < math.inf), default=math.nan)
    measured = (
        f"closed after {min(lived, default=math.nan):.3f} to {most:.3f} s; open at "
        f"{LOGIN_TIMEOUT_S + LATE_S:g} s: {alive}; logins' p50 / p99 / max beside them {beside.ms()}, "
        f"with them at another server {elsewhere.ms()}, without any {without.ms()}; "
        f"ratio of p99 by {len(found.beside)} pairs {ratios}, plain {beside.p99 / without.p99:.2f}"
    )
    slow = sum(each.sent > 1 for each in found.strangers)
    injected = (
        f"{len(lived):,} strangers in {sizes.pairs} runs of {sizes.strangers:,} on {sizes.workers} workers, "
        f"{slow:,} of them at a byte a second"
    )
    return Outcome("silent", injected if slow else "", measured, broken)
