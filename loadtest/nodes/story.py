"""What clients do while something is done to Redis, and what has to be told of each."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.records import Records
from loadtest.nodes.serving import Serving, Setup, wait_for
from loadtest.nodes.verdict import (
    LOGGED_OUT,
    NODE_DOWN,
    ONLINE,
    RETURNED,
    SILENT,
    Expected,
    Told,
    told,
)
from loadtest.scale.verdict import Event
from protocol import Code

LOGIN_TIMEOUT_S = 10.0
SETTLE_S = 10.0  # ends wait so long after a node has registered anew
SLACK_S = 3.0
BACK_S = 0.3  # of those who are sent away
LOOK_S = 0.2
AWAY_S = (0.1, 0.5)  # for so long one who moves has no connection
NOTICED_SHARE = 0.3  # of the outage, that a node must have noticed: it finds out when a call times out


class Groups(NamedTuple):
    """Clients by what they do; numbers."""

    steady: range  # beat all the time
    silent: range  # fall silent
    leaving: range  # log out
    moving: range  # lose the connection, and are back at once, on whichever node
    coming: range  # log in
    visiting: range  # log in, and out again
    brief: range  # log in, and fall silent

    @property
    def before(self) -> range:
        """Those who are there when it begins."""
        return range(self.coming.start)

    @property
    def staying(self) -> list[int]:
        """Those who mean to be online in the end."""
        return [*self.steady, *self.coming, *self.moving]

    @property
    def arriving(self) -> range:
        """Those who log in meanwhile."""
        return range(self.coming.start, self.brief.stop)


def groups(users: int) -> Groups:
    """Return the groups: a tenth of the users each, and the steady are the rest."""
    tenth = users // 10
    first = users - 6 * tenth
    return Groups(range(first), *(range(first + n * tenth, first + (n + 1) * tenth) for n in range(6)))


Due = Mapping[str, list[Told]]
"""What has to be told of each in a group, in order."""

DUE: Due = {
    "steady": [ONLINE],
    "silent": [ONLINE, SILENT],
    "leaving": [ONLINE, LOGGED_OUT],
    "moving": [ONLINE],
    "coming": [ONLINE],
    "visiting": [ONLINE, LOGGED_OUT],
    "brief": [ONLINE, SILENT],
}
# What a node says that was taken for dead comes too late for those who were swept.
DUE_WHEN_CUT: Due = {
    **DUE,
    "steady": [ONLINE, NODE_DOWN, RETURNED],
    "silent": [ONLINE, told("offline", Code.IDLE_TIMEOUT, Code.NODE_DOWN)],
    "leaving": [ONLINE, NODE_DOWN],
    "moving": [ONLINE, NODE_DOWN, ONLINE],
}


def enter(records: Records, setup: Setup, crowd: Crowd, parts: Groups, expected: int) -> None:
    """Let those log in who are there before; wait until Redis knows of so many users."""
    crowd.bring(parts.before)
    wait_for(lambda: records.online(setup.keys()) == expected, LOGIN_TIMEOUT_S)


def live_through(crowd: Crowd, parts: Groups, seconds: float) -> None:
    """Do what the groups do, in the first half of so many seconds; return at their end."""
    begun = time.monotonic()
    acts: Sequence[tuple[float, Callable[[], None]]] = (
        (0.0, lambda: crowd.hush(parts.silent)),
        (0.1, lambda: crowd.bring(parts.arriving, len(parts.arriving) / (0.2 * seconds))),
        (0.2, lambda: crowd.move(parts.moving, AWAY_S)),
        (0.4, lambda: crowd.log_out(parts.leaving)),
        (0.45, lambda: crowd.log_out(parts.visiting)),
        (0.5, lambda: crowd.hush(parts.brief)),
    )
    for share, act in acts:
        time.sleep(max(0.0, begun + share * seconds - time.monotonic()))
        act()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def come_back(crowd: Crowd, parts: Groups, is_over: threading.Event) -> None:
    """Let who means to stay and was sent away log in again soon, as the library does, until it is over."""
    while not is_over.wait(BACK_S):
        diary = crowd.diary
        gone = [n for n in parts.staying if diary.losses[n] and diary.losses[n][-1][0] > diary.logins[n][-1]]
        crowd.bring_back(gone)


def expectations(crowd: Crowd, parts: Groups, due: Due) -> dict[str, Sequence[Told]]:
    """Return what has to be told of each, by uid."""
    return {crowd.uid(n): due[name] for name, numbers in parts._asdict().items() for n in numbers}


def wait_told(read: Callable[[], Iterable[Event]], expected: Expected, setup: Setup) -> None:
    """Wait until of each as much is told as is due, and a little longer; at most for as long as it may take.

    Args:
        read: returns what is told so far.
        expected: what is due.
        setup: of the servers.
    """

    def is_told() -> bool:
        counts = Counter(event.uid for event in read())
        return all(counts[uid] >= len(due) for uid, due in expected.items())

    wait_for(is_told, setup.idle_timeout + setup.tick + SETTLE_S + SLACK_S, look_s=LOOK_S)
    time.sleep(setup.lease / 2)


def lost(crowd: Crowd, parts: Groups, excused: Container[str] = ()) -> list[str]:
    """Return in words who lost a connection that was to stay, or was not let in; but for the excused ones."""
    gone = sum(bool(crowd.diary.losses[n]) for n in parts.staying if crowd.uid(n) not in excused)
    absent = sum(not crowd.diary.logins[n] for n in range(parts.brief.stop))
    absent += sum(len(crowd.diary.logins[n]) < 2 for n in parts.moving)
    found = [f"{gone} connections lost"] if gone else []
    return found + ([f"{absent} were not let in"] if absent else [])


def noticed(servers: Iterable[Serving], seconds: float) -> list[float]:
    """Return for how long nodes were without Redis, of those that were for most of the time."""
    gone = [line["away_s"] for server in servers for line in server.said("Redis is back")]
    return [away_s for away_s in gone if away_s >= NOTICED_SHARE * seconds]
