"""The outcome of a scenario: its figures, the broken promises, and a table."""

import json
import math
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest import usage

MAX_EXAMPLES = 5  # broken promises described in full; all are counted

_print_lock = threading.Lock()


@dataclass(frozen=True)
class CaseOutcome:
    """One row."""

    name: str  # the scenario, and which case of it
    injected: str  # the proof that the fault took place; "" if it did not
    measured: str  # the figures
    broken: Sequence[str] = ()  # every promise that was broken, in words

    @property
    def failures(self) -> list[str]:
        """What fails the case. A run in which nothing was injected shows nothing."""
        return [*([] if self.injected else ["nothing was injected"]), *self.broken]


@dataclass
class BrokenPromises:
    """The broken promises by their text; the first cases in full."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, what: str, example: object) -> None:
        self.counts[what] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{what}: {example}")

    def count(self, what: str) -> int:
        """Return the number of broken promises whose text contains `what`."""
        return sum(count for words, count in self.counts.items() if what in words)

    @property
    def broken(self) -> list[str]:
        """The broken promises as texts with counts, then examples; empty without any."""
        found = [f"{count:,} x {what}" for what, count in sorted(self.counts.items())]
        return found and [*found, *self.examples]


def failed_checks(*checks: tuple[object, str]) -> list[str]:
    """Return the texts of the checks that found something."""
    return [words for found, words in checks if found]


def table(outcomes: Iterable[CaseOutcome]) -> str:
    """Return the outcomes in Markdown."""
    rows = (
        (each.name, each.injected, each.measured, "; ".join(each.failures[:3]) or "kept") for each in outcomes
    )
    return markdown("scenario | injected | measured | promises", rows)


def markdown(head: str | Iterable[object], body: Iterable[str | Iterable[object]]) -> str:
    """Return a table in Markdown; each line is its cells, or a text with " | " between them."""
    names, *lines = [
        line.split(" | ") if isinstance(line, str) else [str(cell) for cell in line] for line in (head, *body)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *lines))


def write_results(folder: Path, name: str, text: str, figures: Mapping[str, Any]) -> None:
    """Write ``<name>.md``, and the figures beside facts about the machine as ``<name>.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text.rstrip("\n") + "\n")
    rows = {"machine": usage.machine_facts(), **figures}
    (folder / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def print_verdict(name: str, broken: Sequence[str]) -> int:
    """Print whether a benchmark has passed; return its exit status."""
    print(f"{name}: " + (f"FAILED: {'; '.join(broken)}" if broken else "passed"))
    return 1 if broken else 0


def print_progress(line: str) -> None:
    with _print_lock:
        print(line, file=sys.stderr, flush=True)


def spread(seconds: Iterable[float]) -> str:
    """Return median, 99th percentile and maximum as text, in seconds."""
    return _spread([*seconds], "s")


def spread_ms(seconds: Iterable[float]) -> str:
    """Return the same in milliseconds."""
    return _spread([each * 1000 for each in seconds], "ms")


def _spread(times: Sequence[float], unit: str) -> str:
    if not times:
        return "none"
    return f"p50 {percentile(times, 0.5):.2f} p99 {percentile(times, 0.99):.2f} max {max(times):.2f} {unit}"


def percentile(times: Iterable[float], share: float) -> float:
    """Return the time below which that share lies, by nearest rank; NaN without times."""
    rising = sorted(times)
    return rising[min(len(rising) - 1, int(share * len(rising)))] if rising else math.nan
