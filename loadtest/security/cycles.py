"""A million connections that come, log in and close: what does a server keep of them?

Each is of a user of its own. Descriptors, memory and the sizes of all that a server keeps are compared at
rest: before (after a warm-up of the same kind), on the way, and in the end. Logins are paced by what Redis
has been told, so that no backlog forms: memory that a backlog took once is not given back to the system.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, wait_for
from loadtest.security.attempts import GRANTED, SOURCES, Attempt, Attempts, Plain, Plan
from loadtest.usage import memory
from presence.embedded import embedded_redis
from presence.store.client import open_client

GROWN_MAX = 0.01
LATE_MAX = 500  # events that Redis may have to be told still, while more logins come
AT_ONCE = 64
LOOK_S = 0.1
REST_S = 20.0  # until all is told and closed
SETTLE_S = 3.0  # and until chores are done
STATISTICS_S = 75.0  # the server logs its figures once a minute
FIGURES = "all statistics"
FLAGS = (
    *("--log-level", "debug"),  # with all figures
    "--disconnect-grace",
    "0",
    "--stream-maxlen",
    "20000",
    "--login-rate",
    "100000",
    "--accept-rate",
    "100000",
)
TABLES = (
    "connections",
    "sessions",
    "queued",
    "uid_logins_kept",
)  # always there: without them nothing was looked at


@dataclass(frozen=True)
class Rest:
    """A server at rest: resident bytes and open descriptors."""

    rss: int
    descriptors: int

    def grown(self, base: "Rest") -> float:
        """Return by what share memory or descriptors have changed, whichever more."""
        return max(abs(self.rss / base.rss - 1), abs(self.descriptors / base.descriptors - 1))

    def __str__(self) -> str:
        return f"{self.rss / 2**20:.2f} MiB, {self.descriptors} descriptors"


class Cycling:
    """A server, and whoever comes and goes."""

    def __init__(self, serving: Serving, redis: Any, per_second: float) -> None:
        self._serving = serving
        self._redis = redis
        self._events = Setup().keys().events(0)
        self._per_second = per_second
        self._turn = self._ended = 0
        self._looked_at, self._may_open = 0.0, True
        self.codes: Counter[int] = Counter()

    def cycle(self, count: int) -> Rest:
        """Let so many come and go; return what the server is at rest then."""
        self._turn += 1
        plan = Plan(
            self._serving.address,
            Plain(f"cycle{self._turn}"),
            count,
            self._per_second,
            reset=True,
            at_once=AT_ONCE,
        )
        Attempts(plan, self._ended_one, self._is_told).run()
        wait_for(lambda: self._untold() <= 0, REST_S, look_s=LOOK_S)
        time.sleep(SETTLE_S)
        pid = self._serving.process.pid
        return Rest(memory(pid).rss, len(os.listdir(f"/proc/{pid}/fd")))

    def _ended_one(self, attempt: Attempt) -> None:
        self.codes[attempt.code] += 1

    def _is_told(self) -> bool:
        if (now := time.monotonic()) - self._looked_at > LOOK_S:
            self._looked_at = now
            self._may_open = self._untold() < LATE_MAX
        return self._may_open

    def _untold(self) -> int:
        """Return how many events of those who have come and gone are not in the stream yet."""
        known = self._redis.exists(self._events)
        added = int(self._redis.xinfo_stream(self._events)["entries-added"]) if known else 0
        return 2 * self.codes[GRANTED] - added

    def kept(self) -> dict[str, int]:
        """Return the sizes of what the server keeps, from the next figures that it logs."""
        before = len(self._serving.said(FIGURES))
        if not wait_for(lambda: len(self._serving.said(FIGURES)) > before, STATISTICS_S):
            return {}
        return sizes(self._serving.said(FIGURES)[-1])


SIZES = {
    *("sessions", "away", "known", "connections", "unsent_connections", "tls_connections"),
    *("handshakes_underway", "awaiting_proxy_headers", "queued", "held_bytes", "backlog"),
    *("waiting", "watchers", "watches", "users"),
}


def sizes(figures: Mapping[str, Any], path: str = "") -> dict[str, int]:
    """Return those of the server's figures that are the present size of something, by their path."""
    found: dict[str, int] = {}
    for name, value in figures.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            found |= sizes(value, here)
        elif isinstance(value, int) and (name in SIZES or name.endswith("_kept")):
            found[here] = value
    return found


@contextmanager
def _cycling(per_second: float) -> Iterator[Cycling]:
    with embedded_redis() as redis:
        serving = Serving(redis.url, *FLAGS)
        try:
            with closing(open_client(redis.url)) as client:
                yield Cycling(serving, client, per_second)
        finally:
            serving.stop()


def cycles(count: int, per_second: float, *, warm_up: int = 10_000, looks: bool = True) -> Outcome:
    """Let so many come and go.

    Args:
        count: of cycles.
        per_second: how many begin in a second at most.
        warm_up: cycles before the base is taken.
        looks: whether to wait, up to a minute, for what the server says that it keeps.
    """
    with _cycling(per_second) as cycling:
        base = cycling.cycle(warm_up)
        say(f"at rest after {warm_up:,}: {base}")
        begun = time.monotonic()
        rests = {}
        for part in (count // 10, count - count // 10):
            rest = cycling.cycle(part)
            rests[sum(cycling.codes.values()) - warm_up] = rest
            say(f"after {sum(cycling.codes.values()) - warm_up:,} more: {rest}")
        seconds = time.monotonic() - begun
        kept = cycling.kept() if looks else None
    return judge(base, rests, kept, cycling.codes, seconds)


def judge(
    base: Rest, rests: Mapping[int, Rest], kept: Mapping[str, int] | None, codes: Counter[int], seconds: float
) -> Outcome:
    """Hold what is left against what was there before.

    Args:
        base: after the warm-up.
        rests: after so many cycles more; the last is the verdict's.
        kept: the sizes of the server's tables; None: nobody looked.
        codes: of all attempts.
        seconds: that the cycles behind the warm-up took.
    """
    count, last = max(rests.items())
    missed = sum(codes.values()) - codes[GRANTED]
    broken = [f"{missed} logins were not granted: {dict(codes)}"] if missed else []
    if last.grown(base) > GROWN_MAX:
        broken.append(f"{last.grown(base):.2%} away from the base, {GROWN_MAX:.0%} allowed")
    if kept is not None:
        broken += [f"{size} {name} are left" for name, size in kept.items() if size]
        broken += [f"nobody says how many {name} are left" for name in TABLES if not _names(kept, name)]
    told = "" if kept is None else f"; {len(kept)} tables, entries left {sum(kept.values())}"
    steps = "; ".join(f"after {number:,}: {rest} ({_change(rest, base)})" for number, rest in rests.items())
    return Outcome(
        "cycles",
        f"{count:,} logins and closes from {SOURCES} addresses, {count / seconds:,.0f} a second"
        if count
        else "",
        f"base {base}; {steps}{told}",
        broken,
    )


def _names(kept: Mapping[str, int], name: str) -> bool:
    return any(path.rpartition(".")[2] == name for path in kept)


def _change(rest: Rest, base: Rest) -> str:
    return f"{rest.rss / base.rss - 1:+.2%}, {rest.descriptors - base.descriptors:+d}"
