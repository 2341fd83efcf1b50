"""What a run is made of, and what came of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from loadtest.chaos.bounds import Setup
from loadtest.chaos.judge import Finding
from loadtest.chaos.measures import Measured
from loadtest.chaos.plan import Kind, Storm, draw
from loadtest.chaos.plans import Plan
from loadtest.servers import Setup as Serve

SPARE_S = 4.0  # of a calm, after everything has come to rest


@dataclass(frozen=True)
class Options:
    """What a run is made of.

    Attributes:
        seed: what is done and when is drawn from it.
        rounds, times, storm_s: see `loadtest.chaos.plan.draw`.
        nodes, clients: how many.
        kinds: of faults.
        serve: the servers' settings.
        grace: theirs too, seconds.
        guard: the one that is switched off; "": none.
        plan: what is done instead of what is drawn; None: that.
        longest_s: how long any fault of a plan may last; 0: as long as planned.
    """

    seed: int
    rounds: int
    times: int
    storm_s: float
    nodes: int
    clients: int
    kinds: Sequence[Kind]
    serve: Serve
    grace: float
    guard: str = ""
    plan: Plan | None = None
    longest_s: float = 0.0

    def storms(self) -> list[Storm]:
        """Return what is done."""
        if self.plan:
            return self.plan.storms(self.serve, self.longest_s)
        return draw(Random(self.seed), self.rounds, self.times, self.nodes, self.kinds, self.storm_s)

    @property
    def setup(self) -> Setup:
        """The same for the judge."""
        serve = self.serve
        return Setup(serve.idle_timeout, serve.lease, serve.tick, self.grace, self.nodes)

    @property
    def calm_s(self) -> float:
        """How long a calm is."""
        return self.setup.rest_s + SPARE_S


@dataclass
class Result:
    """What came of a run.

    Attributes:
        injected: how often each kind was proved to have taken place.
        proofs: the last of each kind.
        findings: broken promises.
        broken: what was broken beside those, in words.
        equal_s: seconds of each calm until Redis was equal to the live sessions.
        measured: of a plan, what followed each fault.
        figures: what else there is to tell, by name.
        begun: monotonic seconds.
    """

    begun: float
    injected: Counter[Kind] = field(default_factory=Counter)
    proofs: dict[Kind, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    equal_s: list[float] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    @property
    def found_s(self) -> float | None:
        """How long it took until the first promise was broken; None: none was."""
        return (
            min((each.at for each in self.findings), default=self.begun - 1) - self.begun
            if self.findings
            else None
        )


def story(finding: Finding, begun: float) -> str:
    """Return a broken promise in words; `begun`: the beginning of its run."""
    rule, text = finding.broken
    return f"{finding.at - begun:.3f} s {rule}: {text}\n    after {finding.lately or 'nothing'}"
