"""A server is killed, and in mid-sweep the one that sweeps what the first has left behind."""

import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from loadtest.nodes.crowd import LOGINS_A_SECOND, Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.kill import AWAY_S, MARGIN_S, QUIET_S, SETTLE_S, late, not_buried
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running, wait_for
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, judge, left_over, spread
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Event

SERVERS = 4
LOOK_S = 0.01  # a sweep of thousands takes a quarter of a second
SWEPT_SHARE = 0.3  # of what the dead node owns; then its sweeper is killed


class Sweep(NamedTuple):
    """A sweep that was cut short.

    Attributes:
        dead: the node that was swept.
        sweeper: the node that did; "" if none was seen to.
        killed: when the sweeper was killed, monotonic seconds.
        owned, left: sessions of the dead node, before the sweep and after the sweeper was killed.
    """

    dead: str
    sweeper: str
    killed: float
    owned: int
    left: int


def sweeper(setup: Setup, *, users: int = 15_000, others: int = 500, away_s: float = AWAY_S) -> Outcome:
    """Kill a server, and in mid-sweep the one that sweeps after it.

    Args:
        setup: of the servers.
        users: of the first that is killed; half of them come back elsewhere.
        others: of each of the three others.
        away_s: seconds in which the half comes back.
    """
    bystanding = others * (SERVERS - 1)
    with (
        Data() as data,
        running([partial(Serving, data.url, *setup.flags)] * SERVERS) as servers,
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([servers[0].address], "first", users, beat_s=setup.beat_s) as first,
        Crowd([each.address for each in servers[1:]], "first", users, beat_s=setup.beat_s) as elsewhere,
        Crowd([each.address for each in servers[1:]], "other", bystanding, beat_s=setup.beat_s) as bystanders,
    ):
        first.bring(range(users))
        bystanders.bring(range(bystanding))
        wait_for(lambda: data.online(setup.keys()) == users + bystanding, users / LOGINS_A_SECOND + SETTLE_S)
        nodes = {stats["pid"]: node for node, stats in data.nodes(setup.keys()).items()}
        killed = time.monotonic()
        servers[0].process.kill()
        back = {*random.sample(range(users), users // 2)}
        elsewhere.bring(back, len(back) / away_s)
        sweep = _kill_sweeper(data, servers, nodes, setup)
        here = (elsewhere, bystanders)
        orphans = {each.uid(n) for each in here for n in each.diary.lost_since(sweep.killed)}
        gone = orphans | {first.uid(n) for n in range(users) if n not in back}
        wait_for(lambda: reader.offline >= len(gone), setup.death_s + setup.lease + MARGIN_S)
        broken = not_buried(data, [sweep.dead, sweep.sweeper], setup)
        time.sleep(QUIET_S)
        broken += left_over(*data.compare(setup.keys(), elsewhere.live() | bystanders.live()))
        events = [*reader.events]
    uids = {*map(first.uid, range(users)), *map(bystanders.uid, range(bystanding))}
    broken += judge({uid: [ONLINE, NODE_DOWN] if uid in gone else [ONLINE] for uid in uids}, events).broken
    broken += [*reader.broken, *(failure for server in servers for failure in server.failures())]
    return _outcome(sweep, events, killed, setup.death_s, (len(gone), len(orphans), len(back)), broken)


def _kill_sweeper(data: Data, servers: Sequence[Serving], nodes: dict[int, str], setup: Setup) -> Sweep:
    """Wait until the first server is being swept, and kill the one that does."""
    dead = nodes[servers[0].process.pid]
    give_up = time.monotonic() + setup.death_s + MARGIN_S
    owned, sweeping = 0, ""
    while not sweeping and time.monotonic() < give_up:
        owned, fields = data.owned(setup.keys(), dead), data.fields(setup.keys(), dead)
        time.sleep(LOOK_S)
        sweeping = data.sweeper(setup.keys(), dead)
    while sweeping and data.fields(setup.keys(), dead) > fields - owned * SWEPT_SHARE:
        time.sleep(LOOK_S)
    killed = time.monotonic()
    for server in servers:
        if nodes[server.process.pid] == sweeping:
            server.process.kill()
    time.sleep(QUIET_S)  # for its clients to notice
    left = data.owned(setup.keys(), dead)
    say(f"sweeper: {sweeping or 'nobody'} was killed, {left:,} of {owned:,} sessions left to sweep")
    return Sweep(dead, sweeping, killed, owned, left)


def _outcome(
    sweep: Sweep,
    events: Sequence[Event],
    killed: float,
    promised_s: float,
    counts: tuple[int, int, int],
    broken: list[str],
) -> Outcome:
    gone, orphans, back = counts
    ends = [event for event in events if event.type == "offline"]
    # What was swept by the first is due from its kill on, the rest from the second's.
    early = [event.read - killed for event in ends if event.stood < sweep.killed]
    rest = [event.read - sweep.killed for event in ends if event.stood >= sweep.killed]
    was_half = sweep.sweeper and 0 < sweep.left < sweep.owned
    return Outcome(
        "kill -9 of the sweeper in mid-sweep",
        f"{sweep.owned - sweep.left:,} of {sweep.owned:,} sessions were swept; {orphans:,} users of its own"
        if was_half
        else "",
        f"offline {len(ends):,} of {gone:,}: {len(early):,} {spread(early)} after the first kill, "
        f"{len(rest):,} {spread(rest)} after the second, promised {promised_s:g}; returned {back:,}",
        [*broken, *late(early + rest, promised_s)],
    )
