"""One of several workers is killed, and half of its users come back elsewhere."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable

from loadtest.nodes.crowd import LOGINS_A_SECOND, Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running, wait_for
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, Expected, judge, left_over, spread
from loadtest.scale.reader import Reader

AWAY_S = 10.0  # in which half of the users come back
SETTLE_S = 10.0  # for logins, and for the stats beside the leases to tell of them
MARGIN_S = 15.0  # how long after the promised time events are still waited for
QUIET_S = 1.0  # and how long after the last: a doubled event would be close behind


def kill(setup: Setup, *, users: int = 2000, workers: int = 4, away_s: float = AWAY_S) -> Outcome:
    """Kill the worker that has the most users; half of them come back elsewhere.

    Args:
        setup: of the servers.
        users: for each worker; as the kernel spreads them, the one that is killed has more.
        workers: of the server.
        away_s: seconds in which the half comes back.
    """
    flags = ("--workers", str(workers), *setup.flags)
    count = users * workers
    with (
        Data() as data,
        running([lambda: Serving(data.url, *flags)]) as (server,),
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([server.address], "kill", count, beat_s=setup.beat_s) as crowd,
    ):
        crowd.bring(range(count))
        _wait_until_told(data, setup, count)
        node, stats = max(data.nodes(setup.keys()).items(), key=lambda each: int(each[1]["sessions"]))
        say(f"kill: {node} with {stats['sessions']:,} of {count:,} users")
        killed = time.monotonic()
        os.kill(stats["pid"], signal.SIGKILL)
        wait_for(lambda: len(crowd.diary.lost_since(killed)) >= stats["sessions"], SETTLE_S)
        lost = crowd.diary.lost_since(killed)
        back = {*random.sample(lost, len(lost) // 2)}
        gone = {*lost} - back
        crowd.bring(back, len(back) / away_s)
        wait_for(lambda: reader.offline >= len(gone), setup.death_s + MARGIN_S)
        broken = not_buried(data, [node], setup)
        time.sleep(QUIET_S)
        broken += left_over(*data.compare(setup.keys(), crowd.live()))
        events = [*reader.events]
    expected: Expected = {crowd.uid(n): [ONLINE, NODE_DOWN] if n in gone else [ONLINE] for n in range(count)}
    seconds = [event.read - killed for event in events if event.type == "offline"]
    broken += [*judge(expected, events).broken, *reader.broken, *server.failures()]
    broken += late(seconds, setup.death_s)
    return Outcome(
        f"kill -9 of one of {workers} workers",
        f"{len(lost):,} users lost their worker, {len(back):,} came back within {away_s:g} s" if lost else "",
        f"offline {len(seconds):,} of {len(gone):,}, {spread(seconds)} after the kill, "
        f"promised {setup.death_s:g}; events for the others {len(events) - count - len(seconds)}",
        broken,
    )


def not_buried(data: Data, nodes: Iterable[str], setup: Setup) -> list[str]:
    """Wait until dead nodes were swept to the end; return in words which were not."""
    return [
        f"{node} was not swept to the end"
        for node in nodes
        if not wait_for(lambda node=node: data.is_buried(setup.keys(), node), setup.lease + MARGIN_S)  # type: ignore[misc] # bound now
    ]


def late(seconds: list[float], promised: float) -> list[str]:
    """Return in words how many of these came later than promised."""
    count = sum(each > promised for each in seconds)
    return [f"{count:,} events later than {promised:g} s"] if count else []


def _wait_until_told(data: Data, setup: Setup, users: int) -> None:
    """Wait until the stats beside the leases tell of all users."""

    def told() -> int:
        return sum(each["sessions"] for each in data.nodes(setup.keys()).values())

    wait_for(lambda: told() == users, users / LOGINS_A_SECOND + SETTLE_S)
