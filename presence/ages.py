"""How long changes wait for Redis: the age of the oldest, and of each when it is acknowledged.

Changes leave in another order than they came (ends wait after an outage), so what waits is counted by the
moment of its decision, in steps: O(1) for each that comes or goes. There are as many steps as an outage is
long, 5 MB an hour, and never more than changes. Moments are Unix milliseconds of the node's own clock, which
no step of the wall clock moves.
"""

from collections.abc import Callable, Iterable
from typing import Final

from presence.changes import Change
from presence.histograms import Histogram

STEP_MS: Final = 50  # by so much at most the oldest is told as older than it is: ages of seconds matter


class Ages:
    """The ages of the changes of one outbox.

    Args:
        now_ms: Unix milliseconds of decisions.
        acknowledged: takes the age of each change that Redis has acknowledged, seconds.
    """

    def __init__(self, now_ms: Callable[[], int], acknowledged: Histogram) -> None:
        self._now_ms = now_ms
        self._acknowledged = acknowledged
        self._waiting: dict[int, int] = {}  # steps, oldest first: time does not go back

    def came(self, change: Change) -> None:
        """A change waits from now on."""
        step = change.at_ms // STEP_MS
        self._waiting[step] = self._waiting.get(step, 0) + 1

    def left(self, change: Change) -> None:
        """A change that came waits no more, whatever became of it."""
        step = change.at_ms // STEP_MS
        remaining = self._waiting[step] - 1
        if remaining:
            self._waiting[step] = remaining
        else:
            del self._waiting[step]

    def note_acknowledged(self, changes: Iterable[Change]) -> None:
        """Redis has these."""
        now_ms = self._now_ms()
        for change in changes:
            self._acknowledged.note((now_ms - change.at_ms) / 1000)

    def oldest_s(self) -> float:
        """Return the age of the oldest that waits; 0.0 if none does."""
        step = next(iter(self._waiting), None)
        return 0.0 if step is None else max(0.0, (self._now_ms() - step * STEP_MS) / 1000)
