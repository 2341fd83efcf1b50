"""The settings and the outcome of a run, in words and as a table; what a single fault led to. Pure."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from loadtest.outcome import markdown, spread
from loadtest.servers import Setup
from loadtest.stream_events import StreamEvent
from presence.protocol import Code
from tests.system.chaos.bounds import settle_s
from tests.system.chaos.judge import ChaosFinding
from tests.system.chaos.plan import ChaosFault, ChaosFaultKind, ChaosPlan, Place, Storm, draw
from tests.system.chaos.truth import DATA_LOSSES, NODE_DEATHS, Trouble, User

CAUGHT_UP_S = 5.0  # promised: so soon after Redis answers, what was decided meanwhile is told
BACK_S = 5.0  # and users of a node that was taken for dead are online again after it has woken
CONVERGED_S = 5.0  # and Redis equals the sessions that live
PROBE_S = 2.5  # a node at rest finds out so late that Redis has lost something while it answered
SETTLE_TIMEOUT_S = 30.0  # for so long it is looked at
CALM_MARGIN_S = 4.0  # of a calm, after everything has come to rest
MAX_EXAMPLES = 20
MAX_EXAMPLES_PER_RULE = 4
NOTHING = "nothing injected"


@dataclass(frozen=True)
class Measured:
    """A fault, the proof that it took place, what followed, and what came later than promised."""

    fault: ChaosFault
    proof: str
    summary: str
    broken: Sequence[str]


def measure(
    fault: ChaosFault,
    proof: str,
    troubles: Sequence[Trouble],
    events: Iterable[StreamEvent],
    users: Iterable[User],
    settled_s: float | None,
    setup: Setup,
) -> Measured:
    """Return what followed a fault.

    Args:
        troubles: with their times; several for a fault in several places.
        events: all since the fault began.
        settled_s: seconds from its end until Redis equalled the live sessions; None: not measured.
    """
    begin, end = min(each.begin for each in troubles), max(each.end for each in troubles)
    of_redis, is_death = fault.kind.value.place in {Place.REDIS, Place.PATH}, fault.kind in NODE_DEATHS
    places = {each.place for each in troubles}
    by_session = {login.session: login for user in users for login in [*user.logins] if login.session}
    down: list[float] = []
    back: list[float] = []
    waits: list[float] = []
    for event in events:
        login = by_session.get(event.session)
        if login is None or (not of_redis and login.place not in places):
            continue
        if event.type == "offline" and event.code == Code.NODE_DOWN and event.written_at >= begin:
            # What a second sweeper ends is due from the death of the first one on.
            since = (
                max(each.begin for each in troubles if each.begin <= event.written_at) if is_death else begin
            )
            down.append(event.written_at - since)
        elif event.type == "online" and event.code == Code.RETURNED and event.written_at >= end:
            back.append(event.written_at - end)
        elif (
            of_redis
            and begin <= event.decided_between[0]
            and event.decided_between[1] < end < event.written_at
        ):
            waits.append(event.written_at - end)
    absent = [] if of_redis else _absences(users, begin, end, places)
    promised = f" (promised {setup.node_down_s:g})" if is_death else ""
    down_max, back_max, wait_max = (max(found, default=0.0) for found in (down, back, waits))
    figures = {
        f"node_down {len(down):,}, {spread(down)} after it began{promised}": is_death or down,
        f"online again {len(back):,}, {spread(back)} after its end": back,
        f"returned {len(absent):,}, away {spread(absent)}": absent,
        f"decided meanwhile {len(waits):,}, told within {wait_max:.2f} s after its end": waits,
        f"Redis equal to the live sessions after {settled_s or 0.0:.2f} s": settled_s is not None,
    }
    settled_s = settled_s or 0.0
    equal_max_s = CONVERGED_S + (PROBE_S if fault.kind in DATA_LOSSES else 0.0)
    is_stall = fault.kind.value.place is not Place.REDIS and not is_death
    broken = {
        f"node_down {down_max:.1f} s after its node's death": is_death and down_max > setup.node_down_s,
        f"back only {back_max:.1f} s after its waking": is_stall and back_max > BACK_S,
        f"caught up only after {wait_max:.1f} s": wait_max > CAUGHT_UP_S,
        f"Redis equal to the live sessions only after {settled_s:.1f} s": settled_s > equal_max_s,
    }
    name = fault.kind.name.lower()
    return Measured(
        fault,
        proof,
        "; ".join(words for words, counts in figures.items() if counts) or "no event",
        [f"{name}: {words}" for words, is_so in broken.items() if is_so],
    )


def _absences(users: Iterable[User], begin: float, end: float, places: set[int]) -> list[float]:
    """Return how long the clients that the fault disconnected, and that are back, were absent."""
    return [
        following.granted_at - login.lost_at
        for user in users
        for login, following in pairwise([*user.logins])
        if login.place in places and begin <= login.lost_at <= end and following.granted_at < math.inf
    ]


@dataclass(frozen=True)
class Options:
    seed: int
    rounds: int
    times: int
    storm_s: float
    nodes: int
    clients: int
    kinds: Sequence[ChaosFaultKind]
    setup: Setup
    guard: str = ""  # switched off; "": none
    plan: ChaosPlan | None = None  # replaces the random faults
    longest_s: float = 0.0  # of each fault of the plan; 0: as planned
    pythons: Sequence[str] = (sys.executable,)  # a node that starts again has the next one's version
    languages: Sequence[str] = ()  # of the libraries, see `tests.system.chaos.libraries`
    library_clients: int = 0  # of each language

    @property
    def acts_fully(self) -> bool:
        """Whether clients make all requests and users are banned: versions and plans have less in common."""
        return self.plan is None and len(self.pythons) == 1

    @property
    def has_rooms(self) -> bool:
        """Whether clients are in rooms: earlier versions have none."""
        return len(self.pythons) == 1

    def storms(self) -> list[Storm]:
        if self.plan:
            return self.plan.storms(self.setup, self.longest_s)
        return draw(Random(self.seed), self.rounds, self.times, self.nodes, self.kinds, self.storm_s)

    @property
    def calm_s(self) -> float:
        return settle_s(self.setup) + CALM_MARGIN_S


@dataclass
class ChaosResult:
    options: Options
    begun: float
    # How often each kind was proved to have taken place, and the last proof
    injected: Counter[ChaosFaultKind] = field(default_factory=Counter)
    proofs: dict[ChaosFaultKind, str] = field(default_factory=dict)
    # Broken promises, and what was broken beside those, in words
    findings: list[ChaosFinding] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # What was told to the judge, did not happen, and broke no promise
    unfound: list[str] = field(default_factory=list)
    # Seconds of each calm until Redis was equal to the live sessions
    converged_s: list[float] = field(default_factory=list)
    bans: int = 0  # of users, by an operator
    statuses_checked: int = 0  # of sessions, in the calms
    members_checked: int = 0  # of rooms, in the calms
    measured: list[Measured] = field(default_factory=list)  # of a plan, what followed each fault
    metrics: dict[str, object] = field(default_factory=dict)  # what else there is to tell, by name

    @property
    def found_s(self) -> float | None:
        """Seconds until the first promise was broken; None: none was."""
        return min((each.at - self.begun for each in self.findings), default=None)

    def story(self, finding: ChaosFinding) -> str:
        """Return a broken promise as text."""
        rule, text = finding.broken
        return (
            f"{finding.at - self.begun:.3f} s {rule}: {text}\n    after {finding.recent_faults or 'nothing'}"
        )

    def stories(self) -> list[str]:
        """Return the first broken promises of each rule as text."""
        reported: Counter[str] = Counter()
        lines = []
        for finding in self.findings:
            reported[finding.broken.rule] += 1
            if reported[finding.broken.rule] <= MAX_EXAMPLES_PER_RULE:
                lines.append(self.story(finding))
        return lines

    def failures(self) -> list[str]:
        """Return what fails the run. A kind of fault that was not injected shows nothing."""
        absent = [kind.name.lower() for kind in self.options.kinds if not self.injected[kind]]
        late = [each for row in self.measured for each in row.broken]
        return [
            *(f"no {name} took place" for name in absent),
            *self.stories(),
            *late,
            *self.broken[:MAX_EXAMPLES],
        ]

    def table(self) -> str:
        options, setup = self.options, self.options.setup
        faults = (
            (kind.value.description, self.injected[kind], self.proofs.get(kind, NOTHING))
            for kind in options.kinds
        )
        followed = (
            (
                f"{row.fault.kind.value.description}, {row.fault.seconds:g} s",
                row.proof or NOTHING,
                row.summary,
            )
            for row in self.measured
        )
        rules = Counter(finding.broken.rule for finding in self.findings)
        figures = {
            "faults": f"{sum(self.injected.values())} of {len(self.injected)} kinds",
            "broken promises": f"{sum(rules.values())} {dict(rules) if rules else ''}",
            "Redis equal to the live sessions after a storm": spread(self.converged_s),
            **self.metrics,
        }
        return "\n\n".join(
            [
                f"seed {options.seed}; {options.nodes} nodes, {options.clients:,} clients; "
                + " ".join(setup.flags)
                + (f"; guard {options.guard}" if options.guard else ""),
                markdown("fault | proof | what followed", followed)
                if options.plan
                else markdown("fault | times | the last one", faults),
                markdown("measured | ", figures.items()),
            ]
        )
