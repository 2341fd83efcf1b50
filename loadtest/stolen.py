"""Processor time that the hypervisor gave to other machines, which no program can do anything about.

On a machine that is shared a process may stand still for as long as its processor is somebody else's. What is
promised to the tenth of a second holds there but for that; Linux tells how much it was, per processor
(`steal` in proc(5), /proc/stat).
"""

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Final, Self

STAT: Final = Path("/proc/stat")
SAMPLE_S: Final = 0.1
WINDOW_SAMPLES: Final = 10  # a second: whoever stands still may have to catch up, too
_STEAL_COLUMN: Final = 8


class Stolen:
    """Looks all the time while it is entered.

    Args:
        stat: what tells it; where there is no such file nothing is stolen.

    Attributes:
        worst_s: what one processor lost in its worst second, seconds.
    """

    def __init__(self, stat: Path = STAT) -> None:
        self.worst_s = 0.0
        self._stat = stat
        self._window: deque[list[float]] = deque(maxlen=WINDOW_SAMPLES + 1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        """Take a sample."""
        with contextlib.suppress(OSError):
            self._window.append(_stolen_s(self._stat.read_text()))
            spans = zip(self._window[0], self._window[-1], strict=False)  # processors may come and go
            self.worst_s = max([self.worst_s, *(last - first for first, last in spans)])

    def _run(self) -> None:
        self.look()
        while not self._over.wait(SAMPLE_S):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.look()


def _stolen_s(stat: str) -> list[float]:
    """Return what each processor has lost since the machine started."""
    rows = [line.split() for line in stat.splitlines() if line.startswith("cpu") and line[3].isdigit()]
    return [int(row[_STEAL_COLUMN]) / os.sysconf("SC_CLK_TCK") for row in rows]
