"""Compares what the demo's clients did with the events. Pure."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from presence.protocol import Code


class DemoAction(Enum):
    """The actions of clients in the demo; each causes one kind of event, or none."""

    STAYS_ALIVE = "kept alive"
    FALLS_SILENT = "fell silent"
    CLOSES = "closed without a logout"
    LOGS_OUT = "logged out"


EXPECTED: Mapping[DemoAction, Code | None] = {
    DemoAction.STAYS_ALIVE: None,
    DemoAction.FALLS_SILENT: Code.IDLE_TIMEOUT,
    DemoAction.CLOSES: Code.CLOSED,
    DemoAction.LOGS_OUT: Code.LOGOUT,
}


class TimelineEvent(NamedTuple):
    """The fields of an event that the comparison needs."""

    uid: str
    type: str
    code: int
    at_ms: int


@dataclass
class DemoClient:
    """What one client did."""

    uid: str
    action: DemoAction  # planned
    logged_in: bool = False  # whether its login was answered with ok
    last_act: float = 0.0  # Unix seconds right before its last packet or close
    done: bool = False  # whether it has performed its action


@dataclass(frozen=True)
class OfflineBounds:
    """When an offline event is due after a client's last act, seconds."""

    idle_timeout: float  # T
    tick: float  # the greatest delay by design
    grace: float  # of a closed connection
    # for the time between reading the client's clock and the server's receipt of the packet
    slack: float = 0.5

    def window(self, action: DemoAction) -> tuple[float, float]:
        """Return the earliest and the latest moment after the last act."""
        earliest = {DemoAction.FALLS_SILENT: self.idle_timeout, DemoAction.CLOSES: self.grace}.get(
            action, 0.0
        )
        return earliest, earliest + (0.0 if action is DemoAction.LOGS_OUT else self.tick) + self.slack


@dataclass
class Row:
    """The comparison of all clients with one action."""

    action: DemoAction
    clients: int = 0
    events: int = 0
    delays_s: list[float] = field(default_factory=list)

    def spread(self) -> str:
        """Return minimum, median and maximum delay, as text."""
        if not self.delays_s:
            return ""
        ranked = sorted(self.delays_s)
        return f"{ranked[0]:.2f} / {statistics.median(ranked):.2f} / {ranked[-1]:.2f} s"


@dataclass
class ComparisonResult:
    """All rows, and every difference between actions and events, in words."""

    rows: list[Row]
    differences: list[str]


def compare(
    clients: Iterable[DemoClient], events: Iterable[TimelineEvent], bounds: OfflineBounds
) -> ComparisonResult:
    """Compare every event with its client's action; each difference is one sentence."""
    online: dict[str, list[TimelineEvent]] = {}
    offline: dict[str, list[TimelineEvent]] = {}
    for event in events:
        {"online": online, "offline": offline}.get(event.type, {}).setdefault(event.uid, []).append(event)
    rows = {action: Row(action) for action in DemoAction}
    differences = []
    known = set()
    for client in clients:
        known.add(client.uid)
        if not client.logged_in:
            differences.append(f"{client.uid} could not log in")
            continue
        action = client.action if client.done else DemoAction.STAYS_ALIVE
        row = rows[action]
        row.clients += 1
        if len(online.get(client.uid, [])) != 1:
            differences.append(
                f"{client.uid} logged in once; {len(online.get(client.uid, []))} online events"
            )
        row.events += len(offline.get(client.uid, []))
        differences += _differences(client, action, offline.get(client.uid, []), bounds, row)
    differences += [f"{uid} is not a client, but has events" for uid in {*online, *offline} - known]
    return ComparisonResult(list(rows.values()), differences)


def _differences(
    client: DemoClient, action: DemoAction, ends: list[TimelineEvent], bounds: OfflineBounds, row: Row
) -> list[str]:
    code = EXPECTED[action]
    if code is None:
        return [f"{client.uid} {action.value}; reported offline ({Code(each.code).reason})" for each in ends]
    if len(ends) != 1:
        return [f"{client.uid} {action.value}; {len(ends)} offline events"]
    delay_s = ends[0].at_ms / 1000 - client.last_act
    row.delays_s.append(delay_s)
    if ends[0].code != code:
        return [f"{client.uid} {action.value}; reported offline with code {ends[0].code} and not {int(code)}"]
    earliest, latest = bounds.window(action)
    if not earliest <= delay_s <= latest:
        return [
            f"{client.uid} {action.value}; reported after {delay_s:.3f} s, not {earliest:g} to {latest:g} s"
        ]
    return []
