"""What devices do beside beating, and when. No clock: both clocks are arguments.

Each device plays by itself, by chance, or all play together: then at every full multiple of a time on the
wall clock, so that processes and machines agree without a word.
"""

import math
import random
from collections.abc import Mapping
from typing import NamedTuple

SCENARIOS = ("mixed", "steady", "ramp", "storm", "silence", "flapping")  # see README.md
TOGETHER = {"storm": "storm", "silence": "all silent"}  # what all do
STORM_BACK_S = 2.0  # first bound of the jitter with which clients come back, as the specification says
RAMP_STEPS = 10
NOTHING = "nothing"


class Act(NamedTuple):
    """What to do next, and at which moment of the monotonic clock; never is infinite."""

    at: float
    name: str


class Scenario:
    """One of `SCENARIOS`.

    Args:
        name: which.
        weights: how often a device does what, in the mixed scenario.
        alone_s: mean seconds that a device beats until it does something by itself.
        together_s: seconds between two moments at which all do something.

    Raises:
        ValueError: no scenario has that name, or a time is not above 0.
    """

    def __init__(self, name: str, weights: Mapping[str, float], alone_s: float, together_s: float) -> None:
        if name not in SCENARIOS:
            raise ValueError(f"{name}: no such scenario; there are {', '.join(SCENARIOS)}")
        if min(alone_s, together_s) <= 0:
            raise ValueError("the times between what devices do must be above 0")
        self._name = name
        self._actions = list(weights)
        self._weights = list(weights.values())
        self._alone_s = alone_s
        self._together_s = together_s

    def next(self, now: float, wall: float) -> Act:
        """Return what comes next, by monotonic seconds and Unix seconds."""
        if self._name in TOGETHER:
            return Act(now + self._together_s - wall % self._together_s, TOGETHER[self._name])
        if self._name in {"steady", "ramp"}:
            return Act(math.inf, NOTHING)
        at = now + random.expovariate(1 / self._alone_s)
        if self._name == "flapping":
            return Act(at, "flap")
        return Act(at, random.choices(self._actions, self._weights)[0])


def stair(elapsed_s: float, run_s: float, devices: int) -> int | None:
    """Return how many devices there are after some seconds of a ramp; None when it is over."""
    if elapsed_s >= run_s:
        return None
    return math.ceil(devices * (int(elapsed_s / run_s * RAMP_STEPS) + 1) / RAMP_STEPS)
