"""What came of a scenario, what was wrong in it, and a table of it."""

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

EXAMPLES = 5  # broken promises told in full; all are counted

_saying = threading.Lock()


@dataclass(frozen=True)
class Outcome:
    """One row.

    Attributes:
        name: the scenario, and which case of it.
        injected: the proof that the fault took place; "" if it did not.
        measured: the figures.
        broken: every promise that was broken, in words.
    """

    name: str
    injected: str
    measured: str
    broken: Sequence[str] = ()

    @property
    def failures(self) -> list[str]:
        """What speaks against it. A run in which nothing was injected shows nothing."""
        return [*([] if self.injected else ["nothing was injected"]), *self.broken]


@dataclass
class Verdict:
    """What was wrong, by its words; the first cases in full."""

    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, what: str, example: object) -> None:
        """Something is wrong."""
        self.wrong[what] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{what}: {example}")

    def count(self, what: str) -> int:
        """Return how often something was wrong whose words have `what` among them."""
        return sum(count for words, count in self.wrong.items() if what in words)

    @property
    def broken(self) -> list[str]:
        """What was wrong, in words with counts; nothing if all is as it has to be."""
        found = [f"{count:,} x {what}" for what, count in sorted(self.wrong.items())]
        return found and [*found, *self.examples]


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes in Markdown."""
    rows = [
        f"| {each.name} | {each.injected} | {each.measured} | {'; '.join(each.failures[:3]) or 'kept'} |"
        for each in outcomes
    ]
    return "\n".join(["| scenario | injected | measured | promises |", "| --- " * 4 + "|", *rows])


def say(line: str) -> None:
    """Tell how it goes."""
    with _saying:
        print(line, file=sys.stderr, flush=True)


def spread(seconds: Iterable[float]) -> str:
    """Return median, 99th percentile and maximum, as text."""
    rising = sorted(seconds)
    if not rising:
        return "none"
    p50, p99 = rising[len(rising) // 2], rising[min(len(rising) - 1, len(rising) * 99 // 100)]
    return f"p50 {p50:.2f} p99 {p99:.2f} max {rising[-1]:.2f} s"
