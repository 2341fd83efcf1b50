"""What the server has sent: the last sample, and the latest events.

Tests: `tests/top/test_view.py`.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

EVENTS_KEPT: Final = 200
STALE_S: Final = 3.0  # a server sends a sample every second


class TopState:
    """The data that is shown.

    Attributes:
        url: of the server.
        hello: what the server said about itself; empty before.
        sample: the last sample; empty before.
        events: the latest, the newest first; an item may also be a text.
        problem: why there is no connection; "" if there is one.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.hello: Mapping[str, Any] = {}
        self.sample: Mapping[str, Any] = {}
        self.events: deque[Mapping[str, Any] | str] = deque(maxlen=EVENTS_KEPT)
        self.problem = ""
        self._cpu_s: dict[int, tuple[float, float]] = {}  # by process: CPU time, and when that was
        self._cpu_share: dict[int, float] = {}
        self._sampled_at = time.monotonic()

    def receive(self, name: str, data: Mapping[str, Any]) -> None:
        """Take a message of the server's stream."""
        self.problem = ""
        if name == "hello":
            self.hello = data
        elif name == "sample":
            self._sampled_at = time.monotonic()
            self._measure_cpu(data)
            self.sample = data
        elif name in {"past", "transitions"}:
            if data.get("skipped"):
                self.events.appendleft(f"{data['skipped']:,} more events, too many to show")
            known = [each for each in self.events if not isinstance(each, str)]
            self.events.extendleft(each for each in data.get("events", ()) if each not in known)

    def forget(self) -> None:
        self.hello = self.sample = {}
        self.events.clear()

    def lose(self, problem: str) -> None:
        """Note that the connection was lost, or not made, and why."""
        self.problem = problem
        lost = "connection lost: events may be missing here"
        if self.events and self.events[0] != lost:
            self.events.appendleft(lost)

    @property
    def silent_s(self) -> float:
        """Seconds since the last sample; 0 if it is current."""
        age_s = time.monotonic() - self._sampled_at
        return age_s if self.problem or age_s > STALE_S else 0.0

    def cpu_share(self, pid: int | None) -> float | None:
        """The share of a core that a worker used between the last two samples; None: not known."""
        return None if pid is None else self._cpu_share.get(pid)

    def _measure_cpu(self, sample: Mapping[str, Any]) -> None:
        at_s = sample["at_ms"] / 1000
        used = {each["pid"]: (each["cpu_s"], at_s) for each in sample["workers"] if each["answering"]}
        self._cpu_share = {
            pid: (cpu_s - self._cpu_s[pid][0]) / (at_s - self._cpu_s[pid][1])
            for pid, (cpu_s, _) in used.items()
            if pid in self._cpu_s and at_s > self._cpu_s[pid][1]
        }
        self._cpu_s = used
