"""No descriptors left: who is connected stays, the log is calm, and who waits is let in once there are some.

The limit of the running server is lowered to what it has open and a few more; strangers take these,
and wait for more.
"""

import math
import os
import resource
import socket
import time
from datetime import datetime
from itertools import pairwise

from loadtest.hostile.stage import Stage, drop, in_words, login
from loadtest.nodes.outcome import Outcome
from loadtest.nodes.serving import wait_for
from loadtest.security.samples import Spread

SPARE = 20  # descriptors that the server has left when it begins
TRIES = 5  # times that descriptors become free
FREED = 20  # descriptors each time: so many of those who wait are let in
RESUMES_S = 1.0
LOG_EVERY_S = 1.0
REST_S = 1.5  # connections that were hung up drain for a second
DATING_S = 0.05  # a line is dated when it is written
EVENT = "accept_failed"
ANSWER_S = 20.0


def emfile(stage: Stage, waiting: int, starved_s: float) -> Outcome:
    """Let so many wait for descriptors, for so many seconds, before the first become free."""
    pid = stage.serving.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit = _at_rest(pid) + SPARE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    clients = [_knock(stage, number) for number in range(waiting)]
    starved = wait_for(lambda: bool(stage.serving.said(EVENT)), ANSWER_S)
    time.sleep(starved_s)
    inside, outside = _split(clients)
    kept_out = len(outside)
    waits: list[float] = []
    for _ in range(TRIES):
        if len(inside) < FREED or not outside:
            break
        for client in inside[:FREED]:
            drop(client)
        begun = time.monotonic()
        del inside[:FREED]
        wait_for(lambda: any(map(_is_answered, outside)), ANSWER_S)  # noqa: B023 - called at once
        waits.append(time.monotonic() - begun)
        time.sleep(LOG_EVERY_S)
        come, outside = _split(outside)
        inside += come
    lines = [_moment(line["timestamp"]) for line in stage.serving.said(EVENT)]
    hurt = stage.others_hurt()
    for client in (*inside, *outside):
        drop(client)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    gaps = [later - earlier for earlier, later in pairwise(lines)]
    return _judge(waits, gaps, hurt, kept_out if starved else 0, len(lines))


def _at_rest(pid: int) -> int:
    """Return how many descriptors a process has once it closes no more of them."""
    counts = [0]

    def is_steady() -> bool:
        counts.append(len(os.listdir(f"/proc/{pid}/fd")))
        return counts[-1] >= counts[-2] > 0

    wait_for(is_steady, ANSWER_S, look_s=REST_S)
    return counts[-1]


def _judge(waits: list[float], gaps: list[float], hurt: list[str], kept_out: int, lines: int) -> Outcome:
    resumed, broken = Spread.of(waits).most, [*hurt]
    if not resumed < RESUMES_S:
        broken.append(f"accepting went on after {resumed:.2f} s, {RESUMES_S:g} allowed")
    if min(gaps, default=LOG_EVERY_S) < LOG_EVERY_S - DATING_S:
        broken.append(f"two lines in the log within {min(gaps):.2f} s")
    measured = (
        f"{in_words(hurt)}; {lines} lines in the log, at least "
        f"{min(gaps, default=math.nan):.2f} s apart; accepting went on {resumed:.3f} s after descriptors "
        f"were free, the longest of {len(waits)} times"
    )
    injected = f"{kept_out:,} connections without a descriptor" if kept_out and waits else ""
    return Outcome("emfile", injected, measured, broken)


def _knock(stage: Stage, number: int) -> socket.socket:
    """Connect and send a login; whether anybody accepts is another matter."""
    client = stage.connect()
    client.sendall(login(f"knocks-{number}"))
    client.setblocking(False)
    return client


def _split(clients: list[socket.socket]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return who was accepted, and who waits."""
    inside = [client for client in clients if _is_answered(client)]
    return inside, [client for client in clients if client not in inside]


def _is_answered(client: socket.socket) -> bool:
    """Whether the server said anything: that the login is granted, or that it is too old by now."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
