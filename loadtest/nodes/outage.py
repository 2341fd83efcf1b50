"""Redis is away for all nodes, or for one of them, while users come, go and fall silent."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from loadtest.nodes.cable import Cable
from loadtest.nodes.crowd import Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running, wait_for
from loadtest.nodes.verdict import (
    LOGGED_OUT,
    NODE_DOWN,
    ONLINE,
    RETURNED,
    SILENT,
    Expected,
    Told,
    judge,
    left_over,
    told,
)
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Event
from protocol import Code

SECONDS = 60.0
NODES = 3
LOGIN_TIMEOUT_S = 10.0
CAUGHT_UP_S = 5.0  # promised: so soon after Redis answers, what was decided meanwhile is told
SETTLE_S = 10.0  # ends wait so long after a node has registered anew
SLACK_S = 3.0
NOTICED_SHARE = 0.3  # of the outage, that a node must have noticed: it finds out when a call times out


class Groups(NamedTuple):
    """Clients by what they do during the outage; numbers."""

    steady: range  # beat all the time
    silent: range  # fall silent
    leaving: range  # log out
    coming: range  # log in
    visiting: range  # log in, and out again
    brief: range  # log in, and fall silent

    @property
    def before(self) -> range:
        """Those who are there when it begins."""
        return range(self.coming.start)

    @property
    def arriving(self) -> range:
        """Those who log in meanwhile."""
        return range(self.coming.start, self.brief.stop)


def groups(users: int) -> Groups:
    """Return the groups: a tenth of the users each, and the steady are the rest."""
    tenth = users // 10
    first = users - 5 * tenth
    return Groups(range(first), *(range(first + n * tenth, first + (n + 1) * tenth) for n in range(5)))


DUE: dict[str, list[Told]] = {
    "steady": [ONLINE],
    "silent": [ONLINE, SILENT],
    "leaving": [ONLINE, LOGGED_OUT],
    "coming": [ONLINE],
    "visiting": [ONLINE, LOGGED_OUT],
    "brief": [ONLINE, SILENT],
}
# What a node says that was taken for dead comes too late for those who were swept.
DUE_WHEN_CUT = {
    **DUE,
    "steady": [ONLINE, NODE_DOWN, RETURNED],
    "silent": [ONLINE, told("offline", Code.IDLE_TIMEOUT, Code.NODE_DOWN)],
    "leaving": [ONLINE, NODE_DOWN],
}


def outages(setup: Setup, *, seconds: float = SECONDS, users: int = 600) -> list[Outcome]:
    """Let Redis be away for so long in three ways, side by side: frozen, killed, cut off from one node."""
    cases = (
        partial(away, setup, seconds, users, is_killed=False),
        partial(away, setup, seconds, users, is_killed=True),
        partial(cut, setup, seconds, users),
    )
    with ThreadPoolExecutor(len(cases)) as pool:
        return [future.result() for future in [pool.submit(case) for case in cases]]


def away(setup: Setup, seconds: float, users: int, *, is_killed: bool) -> Outcome:
    """Let Redis be frozen, or killed and started again with its data, under three workers."""
    name = f"Redis {'killed' if is_killed else 'frozen'} for {seconds:g} s"
    parts = groups(users)
    with (
        Data(keep=is_killed) as data,
        running([lambda: Serving(data.url, "--workers", str(NODES), *setup.flags)]) as (server,),
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([server.address], "user", users, beat_s=setup.beat_s) as crowd,
    ):
        _enter(data, setup, crowd, parts, len(parts.before))
        (data.kill if is_killed else data.freeze)()
        _live_through(crowd, parts, seconds)
        (data.start if is_killed else data.thaw)()
        back = time.monotonic()
        say(f"{name}: it is back")
        expected = _expected(crowd, parts, DUE)
        events, broken = _await(reader, expected, setup)
        broken += left_over(*data.compare(setup.keys(), crowd.live()))
        broken += _lost(crowd, parts)
    waits = [event.read - back for event in events if reader.clock.latest(event.at_ms) < back < event.read]
    broken += judge(expected, events).broken + server.failures()
    broken += [f"caught up after {max(waits):.1f} s"] if waits and max(waits) > CAUGHT_UP_S else []
    noticed = _noticed([server], seconds)
    return Outcome(
        name,
        f"{len(noticed)} nodes without Redis for {min(noticed):.1f} s or more"
        if len(noticed) == NODES
        else "",
        f"{len(waits)} events decided meanwhile, all told {max(waits, default=0.0):.2f} s after its return; "
        f"events {len(events):,} of {sum(map(len, expected.values())):,}",
        broken,
    )


def cut(setup: Setup, seconds: float, users: int) -> Outcome:
    """Cut one of three nodes off from Redis, while its clients beat."""
    name = f"one of {NODES} nodes cut off from Redis for {seconds:g} s"
    parts = groups(users)
    others = users // 2
    with (
        Data() as data,
        Cable(data.path) as cable,
        running([partial(Serving, url, *setup.flags) for url in (cable.url, data.url, data.url)]) as servers,
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([servers[0].address], "user", users, beat_s=setup.beat_s) as crowd,
        Crowd([each.address for each in servers[1:]], "other", others, beat_s=setup.beat_s) as bystanders,
    ):
        bystanders.bring(range(others))
        _enter(data, setup, crowd, parts, others + len(parts.before))
        cable.cut()
        _live_through(crowd, parts, seconds)
        cable.mend()
        back = time.monotonic()
        say(f"{name}: it is mended")
        expected = {
            **_expected(crowd, parts, DUE_WHEN_CUT),
            **{bystanders.uid(n): [ONLINE] for n in range(others)},
        }
        events, broken = _await(reader, expected, setup)
        broken += left_over(*data.compare(setup.keys(), crowd.live() | bystanders.live()))
        broken += _lost(crowd, parts)
    down = [event for event in events if event.code == Code.NODE_DOWN]
    returned = [event.read - back for event in events if event.code == Code.RETURNED]
    broken += judge(expected, events).broken
    broken += [failure for server in servers for failure in server.failures()]
    broken += [f"back only after {max(returned):.1f} s"] if max(returned, default=0.0) > CAUGHT_UP_S else []
    noticed = _noticed(servers[:1], seconds)
    return Outcome(
        name,
        f"it was without Redis for {noticed[0]:.1f} s" if noticed else "",
        f"of {len(parts.before)} users node_down {len(down)}, of {len(parts.steady)} who beat online again "
        f"{len(returned)}, the last {max(returned, default=0.0):.2f} s after its return",
        broken,
    )


def _enter(data: Data, setup: Setup, crowd: Crowd, parts: Groups, expected: int) -> None:
    """Let those log in who are there before; wait until Redis knows of so many users."""
    crowd.bring(parts.before)
    wait_for(lambda: data.online(setup.keys()) == expected, LOGIN_TIMEOUT_S)


def _live_through(crowd: Crowd, parts: Groups, seconds: float) -> None:
    """Do what the groups do, in the first half; return when the outage is to end."""
    begun = time.monotonic()
    acts: Sequence[tuple[float, Callable[[], None]]] = (
        (0.0, lambda: crowd.hush(parts.silent)),
        (0.1, lambda: crowd.bring(parts.arriving, len(parts.arriving) / (0.2 * seconds))),
        (0.4, lambda: crowd.log_out(parts.leaving)),
        (0.45, lambda: crowd.log_out(parts.visiting)),
        (0.5, lambda: crowd.hush(parts.brief)),
    )
    for share, act in acts:
        time.sleep(max(0.0, begun + share * seconds - time.monotonic()))
        act()
    time.sleep(max(0.0, begun + seconds - time.monotonic()))


def _expected(crowd: Crowd, parts: Groups, due: dict[str, list[Told]]) -> dict[str, list[Told]]:
    return {crowd.uid(n): due[name] for name, numbers in parts._asdict().items() for n in numbers}


def _await(reader: Reader, expected: Expected, setup: Setup) -> tuple[list[Event], list[str]]:
    """Wait until all is told, and a little longer; return it, and what of it cannot be read."""
    due = sum(map(len, expected.values()))
    wait_for(lambda: len(reader.events) >= due, setup.idle_timeout + setup.tick + SETTLE_S + SLACK_S)
    time.sleep(setup.lease / 2)
    return [*reader.events], [*reader.broken]


def _lost(crowd: Crowd, parts: Groups) -> list[str]:
    stayed = [*parts.steady, *parts.coming]
    lost = sum(bool(crowd.diary.losses[n]) for n in stayed)
    absent = sum(not crowd.diary.logins[n] for n in range(parts.brief.stop))
    found = [f"{lost} connections lost"] if lost else []
    return found + ([f"{absent} were not let in"] if absent else [])


def _noticed(servers: Iterable[Serving], seconds: float) -> list[float]:
    """Return for how long nodes were without Redis, of those that were for most of the time."""
    gone = [line["away_s"] for server in servers for line in server.said("Redis is back")]
    return [away_s for away_s in gone if away_s >= NOTICED_SHARE * seconds]
