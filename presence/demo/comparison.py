"""What the demo's clients truly did, and whether the events agree: pure."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from presence.protocol import Code


class Action(Enum):
    """What a client does in the demo; each has one kind of event to follow, or none."""

    STAYS_ALIVE = "beat to the end"
    FALLS_SILENT = "fell silent"
    CLOSES = "closed without a word"
    LOGS_OUT = "logged out"


EXPECTED: Mapping[Action, Code | None] = {
    Action.STAYS_ALIVE: None,
    Action.FALLS_SILENT: Code.IDLE_TIMEOUT,
    Action.CLOSES: Code.CLOSED,
    Action.LOGS_OUT: Code.LOGOUT,
}


class TimelineEvent(NamedTuple):
    """An event, as far as the comparison needs it."""

    uid: str
    type: str
    code: int
    at_ms: int


@dataclass
class DemoClient:
    """What one client did.

    Attributes:
        uid: who it is.
        action: what it is to do.
        logged_in: whether its login was answered with ok.
        last_act: Unix seconds right before it last sent a packet, or closed.
        done: whether it has done its action.
    """

    uid: str
    action: Action
    logged_in: bool = False
    last_act: float = 0.0
    done: bool = False


@dataclass(frozen=True)
class OfflineBounds:
    """When an offline event is due after a client's last act, seconds.

    Attributes:
        idle_timeout: T.
        tick: how late the end may be noticed.
        grace: what a closed connection has.
        slack: for the time between the client's clock reading and the server's reading of the packet.
    """

    idle_timeout: float
    tick: float
    grace: float
    slack: float = 0.5

    def window(self, action: Action) -> tuple[float, float]:
        """Return the earliest and the latest moment after the last act."""
        earliest = {Action.FALLS_SILENT: self.idle_timeout, Action.CLOSES: self.grace}.get(action, 0.0)
        return earliest, earliest + (0.0 if action is Action.LOGS_OUT else self.tick) + self.slack


@dataclass
class Row:
    """The comparison for all clients of one action."""

    action: Action
    clients: int = 0
    told: int = 0
    delays_s: list[float] = field(default_factory=list)

    def spread(self) -> str:
        """Return least, median and greatest delay, as text."""
        if not self.delays_s:
            return ""
        ranked = sorted(self.delays_s)
        return f"{ranked[0]:.2f} / {statistics.median(ranked):.2f} / {ranked[-1]:.2f} s"


@dataclass
class ComparisonResult:
    """All rows, and every difference between truth and events in words."""

    rows: list[Row]
    differences: list[str]


def compare(
    clients: Iterable[DemoClient], events: Iterable[TimelineEvent], bounds: OfflineBounds
) -> ComparisonResult:
    """Hold every event against what its client did; each difference is one sentence."""
    online: dict[str, list[TimelineEvent]] = {}
    offline: dict[str, list[TimelineEvent]] = {}
    for event in events:
        {"online": online, "offline": offline}.get(event.type, {}).setdefault(event.uid, []).append(event)
    rows = {action: Row(action) for action in Action}
    differences = []
    known = set()
    for client in clients:
        known.add(client.uid)
        if not client.logged_in:
            differences.append(f"{client.uid} could not log in")
            continue
        action = client.action if client.done else Action.STAYS_ALIVE
        row = rows[action]
        row.clients += 1
        if len(online.get(client.uid, [])) != 1:
            differences.append(
                f"{client.uid} logged in once; {len(online.get(client.uid, []))} online events"
            )
        row.told += len(offline.get(client.uid, []))
        differences += _differences(client, action, offline.get(client.uid, []), bounds, row)
    differences += [f"{uid} never was here; events tell of it" for uid in {*online, *offline} - known]
    return ComparisonResult(list(rows.values()), differences)


def _differences(
    client: DemoClient, action: Action, told: list[TimelineEvent], bounds: OfflineBounds, row: Row
) -> list[str]:
    code = EXPECTED[action]
    if code is None:
        return [f"{client.uid} {action.value}; told offline ({Code(each.code).reason})" for each in told]
    if len(told) != 1:
        return [f"{client.uid} {action.value}; {len(told)} offline events"]
    delay_s = told[0].at_ms / 1000 - client.last_act
    row.delays_s.append(delay_s)
    if told[0].code != code:
        return [f"{client.uid} {action.value}; told offline with code {told[0].code} and not {int(code)}"]
    earliest, latest = bounds.window(action)
    if not earliest <= delay_s <= latest:
        return [f"{client.uid} {action.value}; told after {delay_s:.3f} s, not {earliest:g} to {latest:g} s"]
    return []
