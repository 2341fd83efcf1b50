"""Cost against size: this server with 1,000 to 19,000 connections, and the wheel with up to a million keys.

Two rates for each size. One is the same for all, 3,300/s: whatever rises then is due to size alone. The
other is the same for each *connection*, a beat each 4.5 s: it tells what a machine with so many users spends;
with few of them, keepalives are far apart, so fewer are read at one wake and each costs more.
"""

from dataclasses import replace

from loadtest.bench import wheel
from loadtest.bench.dialects import UNANSWERED
from loadtest.bench.progress import Bar
from loadtest.bench.results import Results
from loadtest.bench.run import Plan, go_through
from loadtest.bench.servers import Contender

CONNECTIONS = (1_000, 5_000, 10_000, 19_000)
RATE = 3_300.0
RATE_EACH = 0.22
WHEEL_S = {10_000: 1.5, 100_000: 2.5, 1_000_000: 15.0}  # a round; a guess, for the progress bar only


def measure(own: Contender, pace: Plan, rounds: int, results: Results) -> None:
    """Measure all sizes, several rounds, and the wheel.

    Args:
        own: this server.
        pace: how long everything takes; its connections and rates are those of this file instead.
        rounds: how often everything is measured.
        results: what is found is added here.
    """
    unanswered = replace(own, kinds=(UNANSWERED,), probed=False)
    plans = [
        replace(pace, connections=connections, rates=(RATE, round(RATE_EACH * connections, 1)), probe_s=0.0)
        for connections in CONNECTIONS
    ]
    total = rounds * (sum(each.planned_s(unanswered) for each in plans) + sum(WHEEL_S.values()))
    with Bar(total) as bar:
        for number in range(1, rounds + 1):
            for each in plans:
                go_through(unanswered, number, each, results, bar)
        for keys in wheel.SIZES:
            bar.begin(f"wheel with {keys:,} keys", WHEEL_S[keys] * rounds)
            results.wheel.append(wheel.measure(keys, rounds))
