"""How things went: a ring of points of a second each, and one of minutes that they were averaged to. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Point: TypeAlias = Sequence[float | None]
"""Unix ms, users online, sessions, connections; a second: packets, users that came, and that went, logins."""

STEP_S: Final = 1
POINTS: Final = 600  # ten minutes
LONG_STEP_S: Final = 60
LONG_POINTS: Final = 1440  # a day; both rings together take some 300 KB


class History:
    """Both rings."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS)
        self._minutes: deque[Point] = deque(maxlen=LONG_POINTS)
        self._pending: list[Point] = []

    def add(self, point: Point) -> None:
        """Take the point of a second."""
        self._points.append(point)
        at_ms = point[0] or 0
        if self._pending and at_ms // (LONG_STEP_S * 1000) != (self._pending[0][0] or 0) // (
            LONG_STEP_S * 1000
        ):
            self._minutes.append(_mean(self._pending))
            self._pending = []
        self._pending.append(point)

    def report(self) -> dict[str, Any]:
        """Return both, as the page wants them."""
        return {
            "history": {"step_s": STEP_S, "points": list(self._points)},
            "long_history": {"step_s": LONG_STEP_S, "points": list(self._minutes)},
        }


def _mean(points: Sequence[Point]) -> Point:
    """Return the point of a minute: the time of the first, and the means of what is known."""
    means: list[float | None] = [points[0][0]]
    for column in list(zip(*points, strict=True))[1:]:
        known = [value for value in column if value is not None]
        means.append(round(sum(known) / len(known), 2) if known else None)
    return means
