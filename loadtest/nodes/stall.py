"""A server is stopped for a while, and goes on: alone, and watched by a peer."""

import contextlib
import itertools
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Times, is_stopped, running, wait_for
from loadtest.nodes.verdict import NODE_DOWN, ONLINE, RETURNED, Expected, Told, judge, left_over, spread, told
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Event
from presence.store.keys import Keys
from protocol import Code

SECONDS = (1.0, 5.0, 29.0, 31.0, 60.0)
SILENT_SHARE = 0.1  # of the clients fall silent with the stop: detection must go on
LOGIN_TIMEOUT_S = 10.0
BACK_S = 5.0  # promised: users of a node that was taken for dead are online again so soon after its waking
READ_S = 0.5  # until the server has read what was sent last; what it reads after the stop counts from then
SETTLE_S = 10.0  # ends wait so long after a node has registered anew: others may have to
SLACK_S = 3.0  # for the way through Redis, on a machine where ten cases run side by side
NOTICED_SHARE = 0.9  # of the stop, that the server must have noticed itself


def stalls(times: Times, *, users: int = 200, seconds: Sequence[float] = SECONDS) -> list[Outcome]:
    """Stop servers for each of these times, with and without a peer, all side by side.

    Args:
        times: of the servers. A stop longer than lease + T ends users, if there is a peer.
        users: of each server that is stopped.
        seconds: how long.
    """
    cases = list(itertools.product(seconds, (False, True)))
    with Data() as data, ThreadPoolExecutor(len(cases)) as pool:
        futures = [
            pool.submit(stall, data, times, stop_s, users=users, has_peer=has_peer)
            for stop_s, has_peer in cases
        ]
        return [future.result() for future in futures]


def stall(data: Data, times: Times, stop_s: float, *, users: int, has_peer: bool) -> Outcome:
    """Stop one server."""
    name = f"stop of {stop_s:g} s, {'with a peer' if has_peer else 'alone'}"
    keys = Keys(f"stall-{stop_s:g}-{has_peer}")
    start = partial(Serving, data.url, "--prefix", keys.prefix, *times.flags)
    silent, steady = range(int(users * SILENT_SHARE)), range(int(users * SILENT_SHARE), users)
    ends = has_peer and stop_s > times.lease + times.idle_timeout
    due_ends = users if ends else len(silent)
    with running([start] * (2 if has_peer else 1)) as servers:  # noqa: SIM117 - they tell figures at the end
        with (
            contextlib.closing(Reader(data.url, keys.prefix)) as reader,
            Crowd([servers[0].address], "stall", users, beat_s=times.beat_s) as crowd,
        ):
            crowd.bring(range(users))
            crowd.wait_online(users, LOGIN_TIMEOUT_S)
            wait_for(lambda: data.online(keys) == users, LOGIN_TIMEOUT_S)
            time.sleep(times.beat_s)  # all have beaten once
            crowd.hush(silent)
            time.sleep(READ_S)
            servers[0].process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            time.sleep(stop_s / 2)
            was_stopped = is_stopped(servers[0].process.pid)
            time.sleep(max(0.0, stopped + stop_s - time.monotonic()))
            servers[0].process.send_signal(signal.SIGCONT)
            woke = time.monotonic()
            say(f"{name}: it goes on")
            # A stop is credited, with T at most; and ends wait while nodes register anew.
            put_off_s = max(2 * times.idle_timeout + times.tick, SETTLE_S) + SLACK_S
            wait_for(lambda: reader.offline >= due_ends, put_off_s)
            time.sleep(times.idle_timeout + times.tick)
            live = crowd.live()
            events, broken = [*reader.events], [*reader.broken, *left_over(*data.compare(keys, live))]
            lost = len(steady) - len(live)
    stalled_s = servers[0].said("stopped")[-1]["ticker"]["stalled_s"]
    expected: Expected = {
        crowd.uid(n): _due(times, stop_s, has_peer=has_peer, ends=ends, beats=n in steady)
        for n in range(users)
    }
    broken += judge(expected, events).broken
    broken += [f"{lost} connections lost"] if lost else []
    broken += [failure for server in servers for failure in server.failures()]
    hushed = {crowd.uid(n) for n in silent}
    figures, back = _figures([event for event in events if event.uid not in hushed], woke)
    broken += [f"back later than {BACK_S:g} s"] if back and max(back) > BACK_S else []
    noticed = was_stopped and (stop_s < 2 * times.tick or stalled_s >= NOTICED_SHARE * stop_s)
    return Outcome(
        name,
        f"process stopped; it noticed {stalled_s:.1f} s" if noticed else "",
        f"of {len(steady)} who beat: {figures}; of {len(silent)} silent told "
        f"{sum(event.type == 'offline' for event in events if event.uid in hushed)}",
        broken,
    )


def _due(times: Times, stop_s: float, *, has_peer: bool, ends: bool, beats: bool) -> list[Told]:
    """Return what has to be told of a user."""
    if beats:
        return [ONLINE, NODE_DOWN, RETURNED] if ends else [ONLINE]
    if ends:
        return [ONLINE, NODE_DOWN]
    # A node that was fenced takes a new id, under which it does not vouch for who is silent.
    may_be_swept = has_peer and stop_s > times.lease - times.beat_s
    codes = (Code.IDLE_TIMEOUT, Code.NODE_DOWN) if may_be_swept else (Code.IDLE_TIMEOUT,)
    return [ONLINE, told("offline", *codes)]


def _figures(events: Sequence[Event], woke: float) -> tuple[str, list[float]]:
    """Return what was told of those who beat, and the seconds from the waking until each was back."""
    ends = [event for event in events if event.type == "offline"]
    back = [event.read - woke for event in events if event.code == Code.RETURNED]
    down = sum(event.code == Code.NODE_DOWN for event in ends)
    others = len(ends) - down
    if not ends and not back:
        return "offline 0", back
    return (
        f"node_down {down}, offline for other reasons {others}, online again {spread(back)}",
        back,
    )
