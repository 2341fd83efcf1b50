"""A server is stopped for a while, and goes on: alone, and watched by a peer."""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, is_stopped, running, wait_for
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, RETURNED, Told, judge, left_over, spread, told
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Event
from protocol import Code

SECONDS = (1.0, 5.0, 29.0, 31.0, 60.0)
SILENT_SHARE = 0.1  # of the clients fall silent with the stop: detection must go on
LOGIN_TIMEOUT_S = 10.0
BACK_S = 5.0  # promised: users of a node that was taken for dead are online again so soon after its waking
READ_S = 0.5  # until the server has read what was sent last; what it reads after the stop counts from then
SETTLE_S = 10.0  # ends wait so long after a node has registered anew: others may have to
SLACK_S = 3.0  # for the way through Redis, on a machine where ten cases run side by side
DRAIN_FLAGS = ("--drain-timeout", "2")  # ends that wait would be waited for, when all is judged already
NOTICED_SHARE = 0.9  # of the stop, that the server must have noticed itself


@dataclass(frozen=True)
class Case:
    """One server that is stopped.

    Attributes:
        setup: of the servers.
        users: of the one that is stopped; those with the first numbers fall silent right before.
        stop_s: how long it is stopped, in seconds.
        has_peer: whether another node is there to watch it.
    """

    setup: Setup
    users: int
    stop_s: float
    has_peer: bool

    @property
    def name(self) -> str:
        """What it is called."""
        return f"stop of {self.stop_s:g} s, {'with a peer' if self.has_peer else 'alone'}"

    @property
    def silent(self) -> range:
        """Who falls silent."""
        return range(int(self.users * SILENT_SHARE))

    @property
    def is_death(self) -> bool:
        """Whether a peer takes the node for dead, and its users with it."""
        return self.has_peer and self.stop_s > self.setup.lease + self.setup.idle_timeout

    def due(self, number: int) -> list[Told]:
        """Return what has to be told of a user."""
        if number not in self.silent:
            return [ONLINE, NODE_DOWN, RETURNED] if self.is_death else [ONLINE]
        if self.is_death:
            return [ONLINE, NODE_DOWN]
        # A node that was fenced takes a new id, under which it does not vouch for who is silent.
        may_be_swept = self.has_peer and self.stop_s > self.setup.lease - self.setup.beat_s
        codes = (Code.IDLE_TIMEOUT, Code.NODE_DOWN) if may_be_swept else (Code.IDLE_TIMEOUT,)
        return [ONLINE, told("offline", *codes)]


def stalls(setup: Setup, *, users: int = 200, seconds: Sequence[float] = SECONDS) -> list[Outcome]:
    """Stop servers for each of these times, with and without a peer, all side by side.

    Args:
        setup: of the servers. A stop longer than lease + T ends users, if there is a peer.
        users: of each server that is stopped.
        seconds: how long.
    """
    cases = [
        Case(setup, users, stop_s, has_peer) for stop_s, has_peer in itertools.product(seconds, (False, True))
    ]
    with Data() as data, ThreadPoolExecutor(len(cases)) as pool:
        return [future.result() for future in [pool.submit(stall, data, case) for case in cases]]


def stall(data: Data, case: Case) -> Outcome:
    """Play one case, under a prefix of its own."""
    keys, setup = case.setup.keys(f"stall-{case.stop_s:g}-{case.has_peer}"), case.setup
    start = partial(Serving, data.url, "--prefix", keys.prefix, *DRAIN_FLAGS, *setup.flags)
    with running([start] * (2 if case.has_peer else 1)) as servers:  # noqa: SIM117 - they tell figures last
        with (
            contextlib.closing(Reader(data.url, keys.prefix)) as reader,
            Crowd([servers[0].address], "stall", case.users, beat_s=setup.beat_s) as crowd,
        ):
            crowd.bring(range(case.users))
            wait_for(lambda: data.online(keys) == case.users, LOGIN_TIMEOUT_S)
            time.sleep(setup.beat_s)  # all have beaten once
            crowd.hush(case.silent)
            time.sleep(READ_S)
            was_stopped = _stop(servers[0].process.pid, case.stop_s)
            woke = time.monotonic()
            say(f"{case.name}: it goes on")
            # A stop is credited, with T at most; and ends wait while nodes register anew.
            due = case.users if case.is_death else len(case.silent)
            put_off_s = max(2 * setup.idle_timeout + setup.tick, SETTLE_S) + SLACK_S
            wait_for(lambda: reader.offline >= due, put_off_s)
            time.sleep(setup.idle_timeout + setup.tick)
            live = crowd.live()
            events, broken = [*reader.events], [*reader.broken, *left_over(*data.compare(keys, live))]
            lost = case.users - len(case.silent) - len(live)
    stalled_s = servers[0].said("stopped")[-1]["ticker"]["stalled_s"]
    broken += judge({crowd.uid(n): case.due(n) for n in range(case.users)}, events).broken
    broken += [f"{lost} connections lost"] if lost else []
    broken += [failure for server in servers for failure in server.failures()]
    noticed = stalled_s >= NOTICED_SHARE * case.stop_s or case.stop_s < 2 * setup.tick
    silent = {crowd.uid(n) for n in case.silent}
    return _outcome(case, stalled_s if was_stopped and noticed else None, events, silent, woke, broken)


def _stop(pid: int, seconds: float) -> bool:
    """Stop a process for a while; return whether it was seen to be stopped."""
    begun = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds / 2)
    was_stopped = is_stopped(pid)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    os.kill(pid, signal.SIGCONT)
    return was_stopped


def _outcome(
    case: Case,
    stalled_s: float | None,
    events: Sequence[Event],
    silent: set[str],
    woke: float,
    broken: list[str],
) -> Outcome:
    ends = [event for event in events if event.type == "offline"]
    beating = [event for event in ends if event.uid not in silent]
    down = sum(event.code == Code.NODE_DOWN for event in beating)
    back = [event.read - woke for event in events if event.code == Code.RETURNED]
    broken += [f"back later than {BACK_S:g} s"] if max(back, default=0.0) > BACK_S else []
    figures = [f"of {case.users - len(silent)} who beat: node_down {down}, otherwise {len(beating) - down}"]
    figures += [f"online again {spread(back)} after it woke"] if back else []
    figures += [f"of {len(silent)} silent: offline {len(ends) - len(beating)}"]
    injected = "" if stalled_s is None else f"stopped; it noticed {stalled_s:.1f} s"
    return Outcome(case.name, injected, "; ".join(figures), broken)
