"""Connections over TLS beside plain ones: memory of each, processor time of a keepalive and of a handshake.

Each kind has a server of its own, with a certificate, and the same load; kinds take turns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from loadtest import usage
from loadtest.nodes.outcome import Outcome, say
from loadtest.security.guarded import Secured, secured
from loadtest.security.samples import percentile
from loadtest.security.tls_clients import beat, clients, unanswered
from loadtest.usage import cpu_s

SETTLE_S = 2.0
FLAGS = ("--login-rate", "100000")


@dataclass(frozen=True)
class Sizes:
    """How much is done: connections, how often each beats, for how long, and servers of each kind."""

    connections: int = 2000
    every_s: float = 1.0
    seconds: float = 20.0
    rounds: int = 3


@dataclass(frozen=True)
class Cost:
    """What connections of one kind cost.

    Attributes:
        bytes_each: resident memory of a connection.
        beat_us: processor time of a keepalive, less what the server takes without any.
        login_us: of an accept, with its handshake, and a login.
        lost: connections that did not last.
    """

    bytes_each: float
    beat_us: float
    login_us: float
    lost: int


def measure(on: Secured, sizes: Sizes, *, tls: bool) -> Cost:
    """Measure on a fresh server."""
    pid = on.stage.serving.process.pid
    spent = cpu_meter(pid)
    warm = clients(_address(on, tls=tls), "warm", 20, tls=tls)
    time.sleep(SETTLE_S)
    spent()
    time.sleep(SETTLE_S)
    idle = spent() / SETTLE_S  # those who behave, and all else that goes on
    begun, third = time.monotonic(), sizes.connections // 3
    all_ = clients(_address(on, tls=tls), "first", third, tls=tls)
    before = usage.memory(pid).rss  # what the first of them have found is not found again
    all_ += clients(_address(on, tls=tls), "more", sizes.connections - third, tls=tls)
    seconds = time.monotonic() - begun
    login_us = (spent() - idle * seconds) / sizes.connections * 1e6
    beat(all_, sizes.every_s, SETTLE_S)  # those that only beat are served otherwise than new ones
    spent()
    taken = beat(all_, sizes.every_s, sizes.seconds)
    beat_us = (spent() - idle * sizes.seconds) / taken * 1e6
    grown = usage.memory(pid).rss - before
    gone = unanswered(all_)
    for each in (*all_, *warm):
        each.close()
    return Cost(grown / (sizes.connections - third), beat_us, login_us, gone)


def tls(sizes: Sizes) -> Outcome:
    """Measure both kinds, by turns."""
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    broken = []
    for number in range(2 * sizes.rounds):
        kind = number % 2 == 0
        with secured(*FLAGS) as on:
            costs[kind].append(measure(on, sizes, tls=kind))
            broken += on.stage.others_hurt()
        say(f"{'TLS' if kind else 'plain'}: {costs[kind][-1]}")
    return judge(costs[True], costs[False], sizes, broken)


def judge(secured_: list[Cost], plain: list[Cost], sizes: Sizes, broken: list[str]) -> Outcome:
    """Put the medians side by side; there is no bound but that nobody is lost."""
    lost = sum(cost.lost for cost in (*secured_, *plain))
    if lost:
        broken.append(f"{lost} connections were lost")
    figures: dict[str, Callable[[Cost], float]] = {
        "bytes of memory a connection": lambda cost: cost.bytes_each,
        "µs of processor time a keepalive": lambda cost: cost.beat_us,
        "µs an accept and login": lambda cost: cost.login_us,
    }
    told = []
    for name, figure in figures.items():
        high, low = (percentile(map(figure, costs), 0.5) for costs in (secured_, plain))
        told.append(f"{name} {high:,.1f}, plain {low:,.1f}" + (f" ({high / low:.1f} times)" if low else ""))
    injected = f"{sizes.connections:,} connections over TLS, and as many plain, {sizes.rounds} times"
    return Outcome("tls", injected if secured_ else "", "; ".join(told), broken)


def cpu_meter(pid: int) -> Callable[[], float]:
    """Return what tells the processor time of a process since it was last asked, in seconds."""
    last = cpu_s([pid])[pid]

    def spent() -> float:
        nonlocal last
        now = cpu_s([pid])[pid]
        since, last = now - last, now
        return since

    return spent


def _address(on: Secured, *, tls: bool) -> tuple[str, int]:
    return on.address if tls else on.stage.serving.address
