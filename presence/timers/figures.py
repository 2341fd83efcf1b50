"""What a worker counts and says: events by their fate."""

from collections.abc import Iterable
from dataclasses import dataclass

from presence.timers.interface import Due


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
        unsaid: whose end Redis did not hear of in time; handed out again once their lease ends.
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
