"""The one workload: who beats when, and who falls silent. Drawn from a seed, the same for every technique.

Everything scales with T, the idle time-out: users beat each 0.4 T, less or more by a tenth, and begin
spread over one beat. A share of them falls silent at moments spread over the first part, early enough that
all should have been told of before the end.
"""

import json
import math
import mmap
import random
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

BEAT_SHARE: Final = 0.4  # of T: two beats may get lost; 12 s of 30
JITTER: Final = 0.1  # of a beat, either way
SLACK_SHARE: Final = 0.05  # of T: a telling that is later than this before the end counts as missed


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        users: N.
        idle_timeout_s: T.
        seconds: how long the run takes; more than T.
        silent_share: part of the users that falls silent.
        seed: draws all of it.
    """

    users: int
    idle_timeout_s: float = 30.0
    seconds: float = 60.0
    silent_share: float = 0.1
    seed: int = 1

    @property
    def beat_s(self) -> float:
        """Mean seconds between two beats of a user."""
        return BEAT_SHARE * self.idle_timeout_s

    @property
    def slack_s(self) -> float:
        """What a telling may be late by to be no miss, at the end of the run."""
        return SLACK_SHARE * self.idle_timeout_s

    @property
    def touches_s(self) -> float:
        """Touches a second while all beat."""
        return self.users / self.beat_s

    @property
    def last_silence_s(self) -> float:
        """Nobody falls silent after this."""
        return self.seconds - self.idle_timeout_s - self.slack_s

    def write(self, folder: Path) -> None:
        """Write it where another process can read it."""
        (folder / "plan.json").write_text(json.dumps(asdict(self)))


class Schedule:
    """Every touch in order of time, and the end of each user.

    Attributes:
        plan: what it was drawn from.
        times: seconds since the begin.
        who: the number of the user, for each of them.
        last_beats: for each user the time of the last beat if he falls silent, else infinity.
    """

    def __init__(
        self, plan: Plan, times: Sequence[float], who: Sequence[int], last_beats: Sequence[float]
    ) -> None:
        self.plan = plan
        self.times = times
        self.who = who
        self.last_beats = last_beats

    def uids(self) -> list[str]:
        """Return what the users are called."""
        return [f"user-{number}" for number in range(self.plan.users)]

    def first_after(self, seconds: float) -> int:
        """Return the place of the first touch at or after a time."""
        return bisect_left(self.times, seconds)

    def write(self, folder: Path) -> None:
        """Write it where another process can read it."""
        self.plan.write(folder)
        (folder / "times").write_bytes(array("d", self.times))
        (folder / "who").write_bytes(array("L", self.who))
        (folder / "last_beats").write_bytes(array("d", self.last_beats))


def draw(plan: Plan) -> Schedule:
    """Return the schedule of a plan.

    Raises:
        ValueError: the run is too short for anybody to fall silent.
    """
    if plan.last_silence_s <= 0:
        raise ValueError(f"{plan.seconds:g} s are too few for an idle time-out of {plan.idle_timeout_s:g} s")
    rng = random.Random(plan.seed)
    silent = set(rng.sample(range(plan.users), round(plan.users * plan.silent_share)))
    last_beats = array("d", [math.inf]) * plan.users
    touches: list[tuple[float, int]] = []
    for user in range(plan.users):
        at = rng.random() * plan.beat_s
        end = plan.last_silence_s * rng.random() if user in silent else plan.seconds
        if user in silent:
            at = min(at, end)  # whoever falls silent has been there
        while at <= end:
            touches.append((at, user))
            last = at
            at += plan.beat_s * (1 + JITTER * (2 * rng.random() - 1))
        if user in silent:
            last_beats[user] = last
    touches.sort()
    times = array("d", (at for at, _ in touches))
    return Schedule(plan, times, array("L", (user for _, user in touches)), last_beats)


def read_plan(folder: Path) -> Plan:
    """Return the plan of the schedule that was written to a folder."""
    return Plan(**json.loads((folder / "plan.json").read_text()))


def read(folder: Path) -> Schedule:
    """Return the schedule that was written to a folder.

    Its columns are mapped: what it takes is no memory of the process, which is to be measured.
    """
    times, last_beats = (_mapped(folder / name).cast("d") for name in ("times", "last_beats"))
    return Schedule(read_plan(folder), times, _mapped(folder / "who").cast("L"), last_beats)


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by the nearest rank; not a number of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]
