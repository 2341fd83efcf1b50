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


class Outage:
    """Calls that fail: an outage is told once, in it each new refusal, and its end when all work again.

    Args:
        log: a structlog logger, or whatever has its methods.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._failures: dict[str, int] = {}  # in a row, of each kind of call that fails at present
        self._told: set[str] = set()

    def failed(self, call: str, error: Exception) -> float:
        """Take note of a failure; return how long to wait before the next attempt, with jitter.

        Args:
            call: which kind of call failed; others may work meanwhile.
            error: why.
        """
        self._failures[call] = failures = self._failures.get(call, 0) + 1
        refusal = "" if isinstance(error, StoreUnavailable) else str(error)
        if refusal not in self._told:
            self._told.add(refusal)
            if refusal:
                self._log.error("Redis refused, trying again", error=refusal)
            else:
                self._log.warning("Redis is away, trying again", error=str(error))
        return jittered(outage_delay_s(failures))

    def worked(self, call: str) -> None:
        """Take note of a call that did not fail."""
        self._failures.pop(call, None)
        if self._told and not self._failures:
            self._log.warning("Redis is back")
            self._told.clear()
