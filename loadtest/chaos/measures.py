"""What a single fault led to, and how soon, held against what is promised of it: pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from loadtest.chaos.plan import Fault, Place
from loadtest.chaos.truth import DEATHS, FORGETS, Trouble, User
from loadtest.events import Event
from loadtest.outcome import spread
from loadtest.servers import Setup
from protocol import Code

CAUGHT_UP_S = 5.0  # promised: so soon after Redis answers, what was decided meanwhile is told
BACK_S = 5.0  # and users of a node that was taken for dead are online again after it has woken
EQUAL_S = 5.0  # and Redis equals the sessions that live
PROBE_S = 2.5  # a node at rest finds out so late that Redis has lost something while it answered
SETTLED_LIMIT_S = 30.0  # for so long it is looked at


@dataclass(frozen=True)
class Measured:
    """A row of the table.

    Attributes:
        fault: what was done.
        proof: that it took place.
        figures: what followed, in words.
        broken: what came later than promised, in words.
    """

    fault: Fault
    proof: str
    figures: str
    broken: Sequence[str]


def measure(
    fault: Fault,
    proof: str,
    troubles: Sequence[Trouble],
    events: Iterable[Event],
    users: Iterable[User],
    settled_s: float | None,
    setup: Setup,
) -> Measured:
    """Return what followed a fault.

    Args:
        fault: what was planned.
        proof: that it took place.
        troubles: what was done, with its moments; several for a fault that comes to several places.
        events: all that was told since it began.
        users: what clients did.
        settled_s: seconds from its end until Redis equalled the live sessions; None: nobody looked.
        setup: the servers'.
    """
    begin, end = min(each.begin for each in troubles), max(each.end for each in troubles)
    of_redis = fault.kind.value.place in {Place.REDIS, Place.PATH}
    places = {each.place for each in troubles}
    by_session = {login.session: login for user in users for login in [*user.logins] if login.session}
    down: list[float] = []
    back: list[float] = []
    waits: list[float] = []
    for event in events:
        login = by_session.get(event.session)
        if login is None or (not of_redis and login.place not in places):
            continue
        if event.type == "offline" and event.code == Code.NODE_DOWN and event.stood >= begin:
            # What a second sweeper ends is due from the death of the first one on.
            down.append(
                event.stood - max(each.begin for each in troubles if each.begin <= event.stood)
                if fault.kind in DEATHS
                else event.stood - begin
            )
        elif event.type == "online" and event.code == Code.RETURNED and event.stood >= end:
            back.append(event.stood - end)
        elif of_redis and begin <= event.decided[0] and event.decided[1] < end < event.stood:
            waits.append(event.stood - end)
    absent = _absences(users, begin, end, places) if not of_redis else []
    figures, broken = [], []
    if fault.kind in DEATHS or down:
        promised = f" (promised {setup.death_s:g})" if fault.kind in DEATHS else ""
        figures.append(f"node_down {len(down):,}, {spread(down)} after it began{promised}")
    if back:
        figures.append(f"online again {len(back):,}, {spread(back)} after its end")
    if absent:
        figures.append(f"returned {len(absent):,}, away {spread(absent)}")
    if waits:
        figures.append(f"decided meanwhile {len(waits):,}, told within {max(waits):.2f} s after its end")
    if settled_s is not None:
        figures.append(f"Redis equal to the live sessions after {settled_s:.2f} s")
    if fault.kind in DEATHS and max(down, default=0.0) > setup.death_s:
        broken.append(f"node_down {max(down):.1f} s after its node's death")
    if (
        fault.kind.value.place is not Place.REDIS
        and fault.kind not in DEATHS
        and max(back, default=0.0) > BACK_S
    ):
        broken.append(f"back only {max(back):.1f} s after its waking")
    if max(waits, default=0.0) > CAUGHT_UP_S:
        broken.append(f"caught up only after {max(waits):.1f} s")
    promised_s = EQUAL_S + (PROBE_S if fault.kind in FORGETS else 0.0)
    if settled_s is not None and settled_s > promised_s:
        broken.append(f"Redis equal to the live sessions only after {settled_s:.1f} s")
    words = f"{fault.kind.name.lower()}: " if broken else ""
    return Measured(fault, proof, "; ".join(figures) or "no event", [words + each for each in broken])


def _absences(users: Iterable[User], begin: float, end: float, places: set[int]) -> list[float]:
    """Return for how long clients had no connection who lost it by the fault and are back."""
    found = []
    for user in users:
        for login, following in pairwise([*user.logins]):
            if login.place in places and begin <= login.lost_at <= end and following.entered < math.inf:
                found.append(following.entered - login.lost_at)
    return found
