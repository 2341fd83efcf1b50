"""Virtual time; and what a process runs on: a clock of its own, and time in which it is stopped."""

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Final

ROUNDING_S = 1e-9

Callback = Callable[[], object]


class Agenda:
    """Scheduled actions. Of two at the same moment the one that was added first runs first."""

    def __init__(self) -> None:
        self.now = 0.0  # true seconds since the simulation began; no process has that clock
        self._heap: list[tuple[float, int, Callback]] = []
        self._numbers = count()

    def at(self, moment: float, act: Callback) -> None:
        """Run an action at a true moment, or now if that has passed."""
        heapq.heappush(self._heap, (max(moment, self.now), next(self._numbers), act))

    def after(self, seconds: float, act: Callback) -> None:
        self.at(self.now + seconds, act)

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, act = heapq.heappop(heap)
            act()
        self.now = until


UNIX_START_S: Final = 1_700_000_000.0  # at the true moment 0


class NodeClock:
    """A machine's clocks, with a rate and an offset of their own.

    Args:
        rate: its seconds per true second.
        offset_s: added to the wall clock.
    """

    def __init__(self, agenda: Agenda, rate: float, offset_s: float) -> None:
        self._agenda = agenda
        self.rate = rate
        self._offset_s = offset_s

    def monotonic(self) -> float:
        return self.monotonic_at(self._agenda.now)

    def monotonic_at(self, moment: float) -> float:
        """Return the clock's monotonic seconds at a true moment."""
        return 1000.0 + moment * self.rate

    def wall(self) -> float:
        """Return the clock's Unix seconds."""
        return UNIX_START_S + self._offset_s + self._agenda.now * self.rate


class Machine:
    """Runs posted actions, unless its process is stopped or has ended.

    Actions wait while it is stopped, and then run in random order, as in a pass of trio's.
    """

    def __init__(self, agenda: Agenda, clock: NodeClock, random: Random) -> None:
        self.agenda = agenda
        self.clock = clock
        self.is_alive = True  # whether its process runs, stopped or not
        self.ended_at = float("inf")  # true time at which that ended
        self.stopped_since: float | None = None  # true time; None while it runs
        self.resumed_at = -1e9  # true time of the last end of a stop
        self.at_end: list[Callback] = []  # called when the process has ended
        self._stopped: list[tuple[float, float]] = []
        self._random = random
        self._stops = 0
        self._waiting: list[Callback] = []

    def post(self, act: Callback) -> None:
        """Run an action now, or when the process resumes."""
        if not self.is_alive:
            return
        if self._stops:
            self._waiting.append(act)
        else:
            act()

    def post_after(self, seconds: float, act: Callback) -> None:
        """Run an action after seconds of the machine's own clock."""
        # Rounded up: a task that wakes too early by less than a float can tell would wake for ever.
        due = seconds / self.clock.rate + ROUNDING_S if seconds > 0 else 0.0
        self.agenda.after(due, lambda: self.post(act))

    def stop_for(self, seconds: float) -> None:
        """Stop the process for some true seconds."""
        if not self.is_alive:
            return
        self._stops += 1
        if self.stopped_since is None:
            self.stopped_since = self.agenda.now
        self.agenda.after(seconds, self._resume)

    def _resume(self) -> None:
        self._stops -= 1
        if self._stops or not self.is_alive:
            return
        if self.stopped_since is not None:
            self._stopped.append((self.stopped_since, self.agenda.now))
        self.stopped_since = None
        self.resumed_at = self.agenda.now
        backlog, self._waiting = self._waiting, []
        self._random.shuffle(backlog)
        for act in backlog:
            self.agenda.at(self.agenda.now, lambda act=act: self.post(act))  # type: ignore[misc]

    def stopped_between(self, since: float, until: float) -> float:
        """Return for how many true seconds of a span the process was stopped."""
        return sum(max(0.0, min(end, until) - max(begin, since)) for begin, end in self._stopped)

    def credit_since(self, since: float, most: float) -> float:
        """Return the most that the process credits for stops that ended since then, each at most `most` s."""
        return sum(min(most, end - begin) for begin, end in self._stopped if end > since)

    def end(self) -> None:
        """End the process immediately."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.ended_at = self.agenda.now
        self._waiting.clear()
        for act in self.at_end:
            act()
