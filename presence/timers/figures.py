"""What a worker counts and says: events by their fate, and each outage of Redis once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from presence.store.batches import StoreUnavailable
from presence.timers.interface import Due
from presence.timers.pacing import jittered, outage_delay_s


@dataclass(slots=True)
class Figures:
    """Counters of one worker, since it began.

    Attributes:
        taken: events that it was handed out.
        handled: whose handler returned.
        failed: whose handler raised or took too long.
        put_off: whose handler said that it is to come again.
        dead: of both, those that had no attempt left.
        cut_off: whose handler was still at work when the drain was over; handed out again.
        returned: not begun when it was to stop; handed out again.
        lapsed: not begun, since their lease had ended while they waited here.
        void: that had gone to another before it said how they ended.
        unsaid: whose end Redis did not hear of; handed out again once their lease ends.
        late_ms_max: the latest handing out.
        late_ms_sum: of all.
    """

    taken: int = 0
    handled: int = 0
    failed: int = 0
    put_off: int = 0
    dead: int = 0
    cut_off: int = 0
    returned: int = 0
    lapsed: int = 0
    void: int = 0
    unsaid: int = 0
    late_ms_max: int = 0
    late_ms_sum: int = 0

    def claimed(self, dues: Iterable[Due]) -> None:
        """Count what was handed out."""
        for due in dues:
            self.taken += 1
            self.late_ms_sum += due.late_ms
            self.late_ms_max = max(self.late_ms_max, due.late_ms)

    def shown(self) -> dict[str, int]:
        """Return what an operator reads."""
        return {
            "taken": self.taken,
            "handled": self.handled,
            "failed": self.failed,
            "put_off": self.put_off,
            "dead": self.dead,
            "cut_off": self.cut_off,
            "returned": self.returned,
            "lapsed": self.lapsed,
            "void": self.void,
            "unsaid": self.unsaid,
            "late_ms_mean": round(self.late_ms_sum / self.taken) if self.taken else 0,
            "late_ms_max": self.late_ms_max,
        }


class Outage:
    """Failures of Redis in a row: each outage is told once, and in it each new refusal.

    Args:
        log: a structlog logger, or whatever has its methods.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._failures = 0
        self._told: set[str] = set()

    def failed(self, error: Exception) -> float:
        """Take note of a failed call; return how long to wait before the next, with jitter."""
        self._failures += 1
        kind = "" if isinstance(error, StoreUnavailable) else str(error)
        if kind not in self._told:
            self._told.add(kind)
            if kind:
                self._log.error("Redis refused, trying again", error=str(error))
            else:
                self._log.warning("Redis is away, trying again", error=str(error))
        return jittered(outage_delay_s(self._failures))

    def worked(self) -> None:
        """Take note of a call that did not fail."""
        if self._told:
            self._log.warning("Redis is back")
            self._told.clear()
        self._failures = 0
