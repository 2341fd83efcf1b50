"""Workers are killed: one, and then the one that sweeps what the first has left behind."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable
from functools import partial

from loadtest.nodes.crowd import LOGINS_A_SECOND, Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Times, running, wait_for
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, Expected, judge, left_over, spread
from loadtest.scale.reader import Reader
from presence.store.keys import Keys

AWAY_S = 10.0  # in which half of the users come back
SETTLE_S = 10.0  # for logins, and for the stats beside the leases to tell of them
MARGIN_S = 15.0  # how long after the promised time events are still waited for
QUIET_S = 1.0  # and how long after the last: a doubled event would be close behind
SWEEP_LOOK_S = 0.001
SWEPT_SHARE = 0.3  # of what a dead node owns; then its sweeper is killed
KEYS = Keys()


def kill(times: Times, *, users: int = 2000, workers: int = 4, away_s: float = AWAY_S) -> Outcome:
    """Kill the worker that has the most users; half of them come back elsewhere.

    Args:
        times: of the servers.
        users: for each worker; as the kernel spreads them, the one that is killed has more.
        workers: of the server.
        away_s: seconds in which the half comes back.
    """
    flags = ("--workers", str(workers), *times.flags)
    count = users * workers
    with (
        Data() as data,
        running([lambda: Serving(data.url, *flags)]) as (server,),
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([server.address], "kill", count, beat_s=times.beat_s) as crowd,
    ):
        crowd.bring(range(count))
        crowd.wait_online(count, count / LOGINS_A_SECOND + SETTLE_S)
        wait_for(lambda: sum(each["sessions"] for each in data.nodes(KEYS).values()) == count, SETTLE_S)
        node, stats = max(data.nodes(KEYS).items(), key=lambda each: int(each[1]["sessions"]))
        say(f"kill: {node} with {stats['sessions']:,} of {count:,} users")
        killed = time.monotonic()
        os.kill(stats["pid"], signal.SIGKILL)
        wait_for(lambda: len(crowd.diary.lost_since(killed)) >= stats["sessions"], SETTLE_S)
        lost = crowd.diary.lost_since(killed)
        back = {*random.sample(lost, len(lost) // 2)}
        gone = {*lost} - back
        crowd.bring(back, len(back) / away_s)
        wait_for(lambda: reader.offline >= len(gone), times.death_s + MARGIN_S)
        broken = _not_buried(data, [node], times)
        time.sleep(QUIET_S)
        broken += left_over(*data.compare(KEYS, crowd.live()))
        events = [*reader.events]
    expected: Expected = {crowd.uid(n): [ONLINE, NODE_DOWN] if n in gone else [ONLINE] for n in range(count)}
    seconds = [event.read - killed for event in events if event.type == "offline"]
    broken += [*judge(expected, events).broken, *reader.broken, *server.failures()]
    broken += _late(seconds, times.death_s)
    return Outcome(
        f"kill -9 of one of {workers} workers",
        f"{len(lost):,} users lost their worker, {len(back):,} came back within {away_s:g} s" if lost else "",
        f"offline {len(seconds):,} of {len(gone):,}, {spread(seconds)} after the kill, "
        f"promised {times.death_s:g}; events for the others {len(events) - count - len(seconds)}",
        broken,
    )


def sweeper(times: Times, *, users: int = 15_000, others: int = 500, away_s: float = AWAY_S) -> Outcome:
    """Kill a server, and in mid-sweep the one that sweeps after it.

    Args:
        times: of the servers.
        users: of the first that is killed; half of them come back elsewhere.
        others: of each of the three others.
        away_s: seconds in which the half comes back.
    """
    with (
        Data() as data,
        running([partial(Serving, data.url, *times.flags)] * 4) as servers,
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([servers[0].address], "first", users, beat_s=times.beat_s) as first,
        Crowd([each.address for each in servers[1:]], "first", users, beat_s=times.beat_s) as elsewhere,
        Crowd([each.address for each in servers[1:]], "other", 3 * others, beat_s=times.beat_s) as bystanders,
    ):
        first.bring(range(users))
        bystanders.bring(range(3 * others))
        wait_for(lambda: data.online(KEYS) == users + 3 * others, users / LOGINS_A_SECOND + SETTLE_S)
        nodes = {stats["pid"]: node for node, stats in data.nodes(KEYS).items()}
        dead = nodes[servers[0].process.pid]
        say(f"sweeper: {dead} with {users:,} users is killed")
        killed = time.monotonic()
        servers[0].process.kill()
        back = {*random.sample(range(users), users // 2)}
        elsewhere.bring(back, len(back) / away_s)

        second, owned = _mid_sweep(data, dead, times.death_s + MARGIN_S)
        killed_too = time.monotonic()
        for server in servers[1:]:
            if nodes[server.process.pid] == second:
                server.process.kill()
        time.sleep(QUIET_S)
        left = data.client.hlen(KEYS.node(0, dead))
        say(f"sweeper: {second or 'nobody'} was killed, {left:,} of {owned:,} fields left to sweep")
        gone = {first.uid(n) for n in range(users) if n not in back}
        orphans = {each.uid(n) for each in (elsewhere, bystanders) for n in each.diary.lost_since(killed_too)}
        due = len(gone) + len(orphans)
        wait_for(lambda: reader.offline >= due, times.death_s + times.lease + MARGIN_S)
        broken = _not_buried(data, [dead, second], times)
        time.sleep(QUIET_S)
        broken += left_over(*data.compare(KEYS, elsewhere.live() | bystanders.live()))
        events = [*reader.events]
        names = {*map(first.uid, range(users)), *map(bystanders.uid, range(3 * others))}
    expected: Expected = {uid: [ONLINE, NODE_DOWN] if uid in gone | orphans else [ONLINE] for uid in names}
    ends = [event for event in events if event.type == "offline"]
    early = [event.read - killed for event in ends if event.stood < killed_too]
    late = [event.read - killed_too for event in ends if event.stood >= killed_too]
    broken += judge(expected, events).broken
    broken += [*reader.broken, *(failure for server in servers for failure in server.failures())]
    broken += _late(late, times.death_s)
    return Outcome(
        "kill -9 of the sweeper in mid-sweep",
        f"{owned - left:,} of {owned:,} fields of the first were swept; {len(orphans):,} users of its own"
        if second and 0 < left < owned
        else "",
        f"offline {len(ends):,} of {due:,}: {spread(early)} after the first kill, {spread(late)} after the "
        f"second, promised {times.death_s:g}; returned {len(back):,}",
        broken,
    )


def _mid_sweep(data: Data, dead: str, seconds: float) -> tuple[str, int]:
    """Wait until a node is being swept; return by whom, and how many fields it had before."""
    give_up = time.monotonic() + seconds
    while not (second := data.sweeper(KEYS, dead)):
        if time.monotonic() > give_up:
            return "", 0
        owned: int = data.client.hlen(KEYS.node(0, dead))
        time.sleep(SWEEP_LOOK_S)
    while data.client.hlen(KEYS.node(0, dead)) > owned * (1 - SWEPT_SHARE):
        time.sleep(SWEEP_LOOK_S)
    return second, owned


def _not_buried(data: Data, nodes: Iterable[str], times: Times) -> list[str]:
    return [
        f"{node} was not swept to the end"
        for node in nodes
        if not wait_for(lambda node=node: data.is_buried(KEYS, node), times.lease + MARGIN_S)  # type: ignore[misc] # bound now
    ]


def _late(seconds: list[float], promised: float) -> list[str]:
    late = sum(each > promised for each in seconds)
    return [f"{late:,} events later than {promised:g} s"] if late else []
