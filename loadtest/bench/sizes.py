"""Cost against size: this server with 1,000 to 19,000 connections, and the wheel with up to a million keys.

Two rates for each size. One is the same for all, 3,300/s: whatever rises then is due to size alone. The
other is the same for each *connection*, a beat each 4.5 s: it tells what a machine with so many users spends;
with few of them, keepalives are far apart, so fewer are read at one wake and each costs more.
"""

from collections.abc import Sequence

from loadtest.bench import wheel
from loadtest.bench.progress import Bar
from loadtest.bench.results import Results
from loadtest.bench.run import Plan, go_through
from loadtest.bench.servers import Contender

CONNECTIONS = (1_000, 5_000, 10_000, 19_000)
RATE = 3_300.0
RATE_EACH = 0.22
WHEEL_S = {10_000: 6.0, 100_000: 8.0, 1_000_000: 40.0}  # a guess, for the progress bar only


def plan(connections: int, seconds: float, burst_ms: float) -> Plan:
    """Return what the server goes through with so many connections."""
    return Plan(connections, (RATE, round(RATE_EACH * connections, 1)), seconds, 0.0, burst_ms)


def measure(
    own: Contender,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    burst_ms: float,
    results: Results,
) -> None:
    """Measure all sizes, several rounds, and the wheel."""
    unanswered = Contender(own.name, own.says, own.dialect, own.kinds[:1], own.command)
    plans = [plan(connections, seconds, burst_ms) for connections in sizes]
    total = rounds * (sum(each.planned_s(unanswered) for each in plans) + sum(WHEEL_S.values()) / 3)
    with Bar(total) as bar:
        for number in range(1, rounds + 1):
            for each in plans:
                go_through(unanswered, number, each, results, bar)
        for keys in wheel.SIZES:
            bar.begin(f"wheel with {keys:,} keys", WHEEL_S[keys] * rounds / 3)
            results.wheel.append(wheel.measure(keys, rounds))
