"""What came of a scenario, and a table of it."""

import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
