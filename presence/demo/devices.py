"""The demo's clients and judge: those of the load test, which need no locust."""

import math
import random
import time
from collections import Counter, defaultdict

from presence.loadtest.client_loop import ClientLoop
from presence.loadtest.device import LoadDevice, Run
from presence.loadtest.judge import DeviceFinding, DeviceJudge, EventDeadlines
from presence.loadtest.options import NOTHING, Act
from presence.subscriber.events import Gap, Item

ACTIONS = ("all silent", "away", "logout")  # of devices: fall silent, close the connection, log out
UID_PREFIX = "user"
CLIENTS_PER_ACTION = 25  # one client in so many falls silent, one closes, one logs out


def uid_of(number: int) -> str:
    """Return the uid of a client; numbers start at 0."""
    return f"{UID_PREFIX}-{number}"


class DemoRun(Run):
    """A run of devices of which some act once; the others stay alive.

    Args:
        acts_within: the first and the last moment at which a device acts, monotonic seconds.
        has_visitors: whether there are users of other names, with which this run has nothing to do.

    Attributes:
        acting: how many devices do each of `ACTIONS`.
        events: how many were read, by the judge's names.
        measured_s: seconds, by the judge's names of what it measured.
        differences: what differs between actions and events, in words.
    """

    def __init__(
        self,
        address: tuple[str, int],
        clients: int,
        deadlines: EventDeadlines,
        acts_within: tuple[float, float],
        *,
        has_visitors: bool = False,
    ) -> None:
        super().__init__(
            ClientLoop(address, sources=0), DeviceJudge(deadlines), "{}:{}".format(*address), UID_PREFIX
        )
        self._has_visitors = has_visitors
        self.clients = clients
        self.acting = max(1, clients // CLIENTS_PER_ACTION)
        names = ACTIONS * self.acting
        self._acts = iter([Act(random.uniform(*acts_within), each) for each in names])  # noqa: S311 - no secret
        self.events: Counter[str] = Counter()
        self.measured_s: defaultdict[str, list[float]] = defaultdict(list)
        self.differences: list[str] = []

    def start(self, within_s: float) -> None:
        """Let all devices log in, spread over that time."""
        for _ in range(self.clients):
            LoadDevice(self).start(within_s)

    def take(self, item: Item) -> None:
        """Judge an entry of the streams."""
        if isinstance(item, Gap):
            self.differences.append(f"events are missing: {item.reason} after {item.id}")
            return
        if self._has_visitors and not item.fields["uid"].startswith(f"{UID_PREFIX}-"):
            return
        # It is late if the server decided late, and not if Redis was unreachable since.
        decided = self.judge.clock.bounds(int(item.fields.get("at_ms", 0)))[1]
        findings = self.judge.judge_event(item.id, item.fields, min(time.monotonic(), decided))
        if not findings:
            self.differences.append(f"{item.fields} is of none of the clients")
            return
        self.events[findings[0].name] += 1
        for finding in findings:
            self.report_promise(finding)

    def close(self) -> None:
        """Judge what is missing."""
        for finding in self.judge.overdue(time.monotonic()):
            self.report_promise(finding)
        if len(self.peers) < self.clients:
            self.differences.append(f"only {len(self.peers)} of {self.clients} clients could log in")

    def next_act(self) -> Act:
        return next(self._acts, Act(math.inf, NOTHING))

    def report_exchange(self, name: str, seconds: float | None, failure: str | None = None) -> None:
        if failure:
            self.differences.append(f"{name}: {failure}")

    def report_promise(self, finding: DeviceFinding) -> None:
        if finding.broken:
            self.differences.append(f"{finding.name}: {finding.broken} ({finding.detail})")
        elif finding.seconds is not None:
            self.measured_s[finding.name].append(finding.seconds)
