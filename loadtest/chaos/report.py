"""What a run is made of, and what came of it, in words and as a table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from loadtest.chaos.bounds import rest_s
from loadtest.chaos.judge import Finding
from loadtest.chaos.measures import Measured
from loadtest.chaos.plan import Kind, Plan, Storm, draw
from loadtest.outcome import markdown, spread
from loadtest.servers import Setup

SPARE_S = 4.0  # of a calm, after everything has come to rest
EXAMPLES = 20
EXAMPLES_OF_A_RULE = 4
NOTHING = "nothing injected"


@dataclass(frozen=True)
class Options:
    """What a run is made of.

    Attributes:
        seed, rounds, times, kinds, storm_s: what is drawn; see `loadtest.chaos.plan.draw`.
        plan, longest_s: what is done instead; how long any fault of it may last, 0: as long as planned.
        guard: the one that is switched off; "": none.
    """

    seed: int
    rounds: int
    times: int
    storm_s: float
    nodes: int
    clients: int
    kinds: Sequence[Kind]
    setup: Setup
    guard: str = ""
    plan: Plan | None = None
    longest_s: float = 0.0

    def storms(self) -> list[Storm]:
        """Return what is done."""
        if self.plan:
            return self.plan.storms(self.setup, self.longest_s)
        return draw(Random(self.seed), self.rounds, self.times, self.nodes, self.kinds, self.storm_s)

    @property
    def calm_s(self) -> float:
        """How long a calm is."""
        return rest_s(self.setup) + SPARE_S


@dataclass
class Result:
    """What came of a run."""

    options: Options
    begun: float
    # How often each kind was proved to have taken place, and the last proof
    injected: Counter[Kind] = field(default_factory=Counter)
    proofs: dict[Kind, str] = field(default_factory=dict)
    # Broken promises, and what was broken beside those, in words
    findings: list[Finding] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    # Seconds of each calm until Redis was equal to the live sessions
    equal_s: list[float] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)  # of a plan, what followed each fault
    figures: dict[str, object] = field(default_factory=dict)  # what else there is to tell, by name

    @property
    def found_s(self) -> float | None:
        """How long it took until the first promise was broken; None: none was."""
        return min((each.at - self.begun for each in self.findings), default=None)

    def story(self, finding: Finding) -> str:
        """Return a broken promise in words."""
        rule, text = finding.broken
        return f"{finding.at - self.begun:.3f} s {rule}: {text}\n    after {finding.lately or 'nothing'}"

    def stories(self) -> list[str]:
        """Return the broken promises in words, of each rule the first ones."""
        told: Counter[str] = Counter()
        lines = []
        for finding in self.findings:
            told[finding.broken.rule] += 1
            if told[finding.broken.rule] <= EXAMPLES_OF_A_RULE:
                lines.append(self.story(finding))
        return lines

    def failures(self) -> list[str]:
        """Return what speaks against the run. Without a kind of fault it shows nothing of that."""
        absent = [kind.name.lower() for kind in self.options.kinds if not self.injected[kind]]
        late = [each for row in self.measured for each in row.broken]
        return [
            *(f"no {name} took place" for name in absent),
            *self.stories(),
            *late,
            *self.broken[:EXAMPLES],
        ]

    def table(self) -> str:
        """Return the report in Markdown."""
        options, setup = self.options, self.options.setup
        faults = (
            (kind.value.words, self.injected[kind], self.proofs.get(kind, NOTHING)) for kind in options.kinds
        )
        followed = (
            (f"{row.fault.kind.value.words}, {row.fault.seconds:g} s", row.proof or NOTHING, row.figures)
            for row in self.measured
        )
        rules = Counter(finding.broken.rule for finding in self.findings)
        figures = {
            "faults": f"{sum(self.injected.values())} of {len(self.injected)} kinds",
            "broken promises": f"{sum(rules.values())} {dict(rules) if rules else ''}",
            "Redis equal to the live sessions after a storm": spread(self.equal_s),
            **self.figures,
        }
        return "\n\n".join(
            [
                f"seed {options.seed}; {options.nodes} nodes, {options.clients:,} clients; "
                + " ".join(setup.flags)
                + (f"; without {options.guard}" if options.guard else ""),
                markdown("fault | proof | what followed", followed)
                if options.plan
                else markdown("fault | times | the last one", faults),
                markdown("measured | ", figures.items()),
            ]
        )
