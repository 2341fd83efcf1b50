"""What a worker has leased, and how far each event is: waiting, running, or waiting to be reported.

Bookkeeping only: no clock, no I/O. Times are monotonic seconds of the worker. A lease is reckoned from the
moment *before* Redis was asked, so that here it ends before it ends there.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from presence.timers.interface import Due


@dataclass(frozen=True, slots=True)
class Retry:
    """An event that is to be handed out again, after a delay."""

    due: Due
    delay_s: float


@dataclass(slots=True)
class Reports:
    """What Redis has not heard yet.

    Attributes:
        done: handled.
        retries: failed.
        returns: not begun, or cut off: to be handed out again at once.
    """

    done: list[Due] = field(default_factory=list)
    retries: list[Retry] = field(default_factory=list)
    returns: list[Due] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.done) + len(self.retries) + len(self.returns)

    def add(self, later: "Reports") -> None:
        """Take over what is to be said after this."""
        self.done += later.done
        self.retries += later.retries
        self.returns += later.returns


class Held:
    """The events that one worker has leased.

    Args:
        lease_s: for how long.

    Attributes:
        lapsed: how many were let go since their lease had ended before they were begun.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._waiting: deque[Due] = deque()
        self._leased_at: dict[Due, float] = {}  # of those that wait or run
        self._reports = Reports()
        self._under_way = 0
        self.lapsed = 0

    def __len__(self) -> int:
        """All of them, those that only wait to be reported among them."""
        return len(self._leased_at) + len(self._reports) + self._under_way

    @property
    def waiting(self) -> int:
        """How many were not begun."""
        return len(self._waiting)

    @property
    def unsaid(self) -> int:
        """How many Redis has not heard of."""
        return len(self._reports) + self._under_way

    def take(self, dues: Iterable[Due], asked_at: float) -> None:
        """Add what Redis handed out; it was asked at `asked_at`."""
        for due in dues:
            self._waiting.append(due)
            self._leased_at[due] = asked_at

    def begin(self, now: float) -> Due | None:
        """Return the next event to handle, or None; one whose lease has ended is another's by now."""
        while self._waiting:
            due = self._waiting.popleft()
            if now - self._leased_at[due] < self._lease_s:
                return due
            del self._leased_at[due]
            self.lapsed += 1
        return None

    def aged(self, now: float, age_s: float) -> list[Due]:
        """Return those whose lease is to be extended."""
        return [due for due, at in self._leased_at.items() if now - at >= age_s]

    def extend(self, dues: Iterable[Due], asked_at: float) -> None:
        """Let leases begin anew."""
        for due in dues:
            if due in self._leased_at:
                self._leased_at[due] = asked_at

    def done(self, due: Due) -> None:
        """It was handled."""
        del self._leased_at[due]
        self._reports.done.append(due)

    def failed(self, due: Due, delay_s: float) -> None:
        """It was not handled."""
        del self._leased_at[due]
        self._reports.retries.append(Retry(due, delay_s))

    def cut_off(self, due: Due) -> None:
        """Its handler may not go on."""
        del self._leased_at[due]
        self._reports.returns.append(due)

    def return_waiting(self) -> int:
        """Give back all that was not begun; return how many."""
        number = len(self._waiting)
        while self._waiting:
            self.cut_off(self._waiting.popleft())
        return number

    def take_reports(self) -> Reports:
        """Return what is to be said; `said` when it was."""
        reports, self._reports = self._reports, Reports()
        self._under_way += len(reports)
        return reports

    def said(self, number: int) -> None:
        """Redis has heard of so many more."""
        self._under_way -= number
