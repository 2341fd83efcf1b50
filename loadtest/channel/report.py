"""What came of a run: a table, and the same as JSON."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """One run of one scenario.

    Attributes:
        scenario: its name, and with what it was played.
        rows: what was measured, in words, by what it is.
        figures: the same as numbers, for a file.
        broken: each promise that was broken, in words.
    """

    scenario: str
    rows: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Return it in Markdown."""
        rows = [f"| {name} | {value} |" for name, value in self.rows.items()]
        verdict = "; ".join(self.broken[:3]) or "kept"
        return "\n".join([f"| {self.scenario} | |", "| --- " * 2 + "|", *rows, f"| promises | {verdict} |"])

    def as_json(self) -> str:
        """Return it as one object."""
        found = {"scenario": self.scenario, "rows": self.rows, **self.figures, "broken": self.broken}
        return json.dumps(found, indent=1)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the maximum; zeros of nothing."""
    rising = sorted(values)
    if not rising:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    return {
        "p50": rising[len(rising) // 2],
        "p99": rising[min(len(rising) - 1, len(rising) * 99 // 100)],
        "max": rising[-1],
    }


def spread_ms(found: Mapping[str, float]) -> str:
    """Return percentiles as text; they are in ms."""
    return ", ".join(f"{name} {value:,.1f}" for name, value in found.items()) + " ms"


class Load:
    """What the load itself takes of a core; if that is much, it is what was measured."""

    def __init__(self) -> None:
        self._begun, self._cpu = time.monotonic(), time.process_time()

    def core_share(self) -> float:
        """Return it, since the start."""
        return (time.process_time() - self._cpu) / (time.monotonic() - self._begun)
