"""All workers are restarted one after the other, under clients that return as the library's do."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from loadtest.nodes.crowd import LOGINS_A_SECOND, Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running, wait_for
from loadtest.nodes.verdict import ONLINE, judge, left_over, spread
from loadtest.scale.reader import Reader
from loadtest.servers import START_TIMEOUT_S

WORKERS = 4
SERVERS = 3
LOGIN_TIMEOUT_S = 15.0
RETURN_TIMEOUT_S = 60.0
SLACK_S = 2.0

Restart = Callable[[], int]
"""Restarts all, and returns how many processes were replaced."""


def restarts(setup: Setup, *, users: int = 5000) -> list[Outcome]:
    """Restart the workers of one server, and servers of one worker each, side by side."""
    with ThreadPoolExecutor(2) as pool:
        return [
            future.result() for future in [pool.submit(play, setup, users) for play in (workers, servers)]
        ]


def workers(setup: Setup, users: int) -> Outcome:
    """Tell each worker of a server in turn to end, and wait for its successor."""
    flags = ("--workers", str(WORKERS), *setup.flags)
    with Data() as data, running([lambda: Serving(data.url, *flags)]) as (server,):

        def restart() -> int:
            before = sorted(server.workers().items())
            for number, pid in before:
                serving = len(server.said("serving")) + 1
                os.kill(pid, signal.SIGTERM)
                _wait_until_serving(server, serving)
                say(f"rolling: worker {number} is renewed")
            return sum(server.workers()[number] != pid for number, pid in before)

        return _play(f"rolling restart of {WORKERS} workers", data, [server], setup, users, restart)


def servers(setup: Setup, users: int) -> Outcome:
    """Stop each of several servers in turn, and start another in its place."""
    with (
        Data() as data,
        running([lambda: Serving(data.url, *setup.flags)] * SERVERS) as each,
    ):

        def restart() -> int:
            replaced = 0
            for n, server in enumerate(each):
                status = server.stop()
                each[n] = Serving(data.url, *setup.flags, port=server.address[1])
                say(f"rolling: server {n + 1} is renewed")
                replaced += status == 0 and not server.failures()
            return replaced

        return _play(f"rolling restart of {SERVERS} servers", data, each, setup, users, restart)


def _play(
    name: str, data: Data, servers: Sequence[Serving], setup: Setup, users: int, restart: Restart
) -> Outcome:
    """Let users log in, restart all, wait until every node that has ended is swept, and judge."""
    with (
        contextlib.closing(Reader(data.url)) as reader,
        Crowd([each.address for each in servers], "user", users, beat_s=setup.beat_s, returns=True) as crowd,
    ):
        crowd.bring(range(users))
        wait_for(lambda: data.online(setup.keys()) == users, users / LOGINS_A_SECOND + LOGIN_TIMEOUT_S)
        before = {*data.nodes(setup.keys())}
        replaced = restart()
        are_back = crowd.wait_online(users, RETURN_TIMEOUT_S)
        say(f"{name}: all are back" if are_back else f"{name}: not all are back")
        wait_for(lambda: not before & {*data.nodes(setup.keys())}, setup.death_s + SLACK_S)
        time.sleep(SLACK_S)
        left = before & {*data.nodes(setup.keys())}
        broken = [] if are_back else ["not all came back"]
        broken += left_over(*data.compare(setup.keys(), crowd.live()))
        events = [*reader.events]
        absent = _absences(crowd)
    broken += judge({crowd.uid(n): [ONLINE] for n in range(users)}, events).broken
    broken += [*reader.broken, *(failure for each in servers for failure in each.failures())]
    away_s = setup.lease + setup.idle_timeout
    late = sum(each > away_s for each in absent)
    broken += [f"{late} returns after more than {away_s:g} s: by then they were offline"] if late else []
    broken += [f"{len(left)} nodes were not swept to the end"] if left else []
    return Outcome(
        name,
        f"{replaced} processes replaced under {users:,} clients"
        if replaced == len(before) and len(absent) >= users
        else "",
        f"false events {len(events) - users}; {len(absent):,} returns, away {spread(absent)}",
        broken,
    )


def _absences(crowd: Crowd) -> list[float]:
    """Return the seconds of all times without a connection; a refused attempt is part of the same."""
    found = []
    for logins, losses in zip(crowd.diary.logins, crowd.diary.losses, strict=True):
        ends = [at for at, _ in losses]
        for login, following in pairwise(logins):
            found.append(following - min(at for at in ends if at > login))
    return found


def _wait_until_serving(server: Serving, times: int) -> None:
    wait_for(lambda: len(server.said("serving")) >= times, START_TIMEOUT_S)
