"""One scenario while it runs, and what became of its events."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Final

from loadtest.bench.progress import Bar
from loadtest.timers.expiry.scenarios import Plan, Scenario, cutting, set_others
from presence.embedded import embedded_redis
from presence.store.batches import StoreUnavailable
from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import Event

BASE: Final = Keys().timer("load")
NAP_S: Final = 0.1  # while Redis is away


@dataclass
class Outcome:
    """What became of the events; lateness in milliseconds.

    Attributes:
        late_ms: of each event that came.
        cut_late_ms: of those that were due while something was cut off.
        found_after_s: from the end of the cut until the last of those had come.
        early, twice, never: how many.
        told, found: events by how they were found.
        redis_us: processor time of Redis for each event, its own expiry of all keys included.
    """

    late_ms: list[float] = field(default_factory=list)
    cut_late_ms: list[float] = field(default_factory=list)
    found_after_s: float | None = None
    early: int = 0
    twice: int = 0
    never: int = 0
    told: int = 0
    found: int = 0
    redis_us: float = 0.0


def now_ms(client: Redis) -> float:
    """Return what the clock of Redis says, Unix milliseconds."""
    clock: Any = client.time()
    return float(clock[0] * 1000 + clock[1] / 1000)


def cpu_us(client: Redis) -> float:
    """Return the processor time that Redis has used."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e6


class Watch:
    """One scenario while it runs."""

    def __init__(self, timer: ExpiryTimer, client: Redis, plan: Plan) -> None:
        self.outcome = Outcome()
        self._timer = timer
        self._client = client
        self._plan = plan
        self._expected: dict[str, float] = {}  # id -> ms before which it would be early
        self._came: dict[str, float] = {}  # id -> ms
        self._first_ms = 0.0

    def schedule(self) -> None:
        """Add the events, evenly over the span."""
        plan = self._plan
        self._first_ms = now_ms(self._client) + plan.first_s * 1000
        delays = {str(n): plan.first_s + plan.span_s * n / plan.events for n in range(plan.events)}
        self._expected = {
            name: self._first_ms + 1000 * (each - plan.first_s) for name, each in delays.items()
        }
        self._timer.schedule_many(Event(name, each, name.encode()) for name, each in delays.items())

    def run(self, cut: Callable[[bool], object] | None, bar: Bar) -> None:
        """Handle what comes until all have come, or patience is at its end."""
        plan = self._plan
        begin_ms = self._first_ms + 1000 * plan.cut_from_s
        end_ms = begin_ms + 1000 * plan.cut_s
        last_ms = self._first_ms + 1000 * (plan.span_s + plan.patience_s)
        state = 0 if cut else 2  # not yet, cut off, over
        while len(self._came) < plan.events and (now := now_ms(self._client)) < last_ms:
            if cut and state < 2 and now >= (begin_ms, end_ms)[state]:
                cut(state == 0)
                state += 1
            try:
                self._take()
            except StoreUnavailable:
                time.sleep(NAP_S)
            bar.tick()
        self._judge(begin_ms, end_ms, is_cut=cut is not None)

    def _take(self) -> None:
        self._timer.wait(NAP_S)
        dues = self._timer.due(1000)
        now = now_ms(self._client)
        for due in dues:
            if due.id in self._came:
                self.outcome.twice += 1
                continue
            self._came[due.id] = now
            self.outcome.early += now < self._expected[due.id] or due.payload != due.id.encode()
            self.outcome.late_ms.append(due.late_ms)
        self._timer.done(dues)

    def _judge(self, begin_ms: float, end_ms: float, *, is_cut: bool) -> None:
        self.outcome.never = len(self._expected) - len(self._came)
        hearing = self._timer.hearing()
        self.outcome.found = hearing.found
        self.outcome.told = len(self._came) - hearing.found
        if is_cut:
            touched = [name for name, at in self._expected.items() if begin_ms <= at < end_ms]
            came = [self._came[name] for name in touched if name in self._came]
            self.outcome.cut_late_ms = [
                self._came[name] - self._expected[name] for name in touched if name in self._came
            ]
            self.outcome.found_after_s = (max(came) - end_ms) / 1000 if came else None


def measure(scenario: Scenario, plan: Plan, bar: Bar) -> Outcome:
    """Return what became of the events of one scenario."""
    with ExitStack() as stack:
        server = stack.enter_context(embedded_redis())
        client = stack.enter_context(open_client(server.url))
        url, cut = stack.enter_context(cutting(server, scenario.cut))
        scripting = stack.enter_context(closing(Scripting(url)))
        timer = ExpiryTimer(scripting, BASE, reconcile_s=scenario.reconcile_s)
        stack.enter_context(closing(timer))
        timer.due()
        set_others(client, scenario.others, plan, scenario.others_ttl_s)
        before = cpu_us(client)
        watch = Watch(timer, client, plan)
        watch.schedule()
        watch.run(cut if scenario.cut else None, bar)
        watch.outcome.redis_us = (cpu_us(client) - before) / plan.events
        return watch.outcome
