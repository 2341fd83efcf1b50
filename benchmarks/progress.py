"""How far a run is: a bar on a terminal, a line for each step elsewhere. On standard error."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Bar:
    """Seconds done of the seconds planned. A step that takes longer than planned delays the bar."""

    def __init__(self, planned_s: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True, highlight=False))
        self._task = self._progress.add_task("", total=planned_s)
        self._done_s = 0.0
        self._begun = time.monotonic()
        self._step_s = 0.0

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, planned_s: float) -> None:
        """Begin a step; it ends the one before."""
        self._done_s += self._step_s
        self._step_s, self._begun = planned_s, time.monotonic()
        self._progress.update(self._task, description=what, completed=self._done_s)

    def tick(self) -> None:
        passed = min(self._step_s, time.monotonic() - self._begun)
        self._progress.update(self._task, completed=self._done_s + passed)

    def print_line(self, line: str) -> None:
        self._progress.console.print(line, markup=False, soft_wrap=True)
