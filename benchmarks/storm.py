"""``python -m benchmarks.storm``: 15,000 clients log in at the same moment.

Other clients are logged in already and ask for answers all the time. Prints the seconds until the last
login was granted, logins per second, CPU per login (all threads of the server, including what goes to
Redis), and the round trips of the others.
"""

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

from benchmarks.contenders import OWN, Running, contenders, running
from benchmarks.prober import ALWAYS, probing
from loadtest import usage
from loadtest.arguments import from_1
from loadtest.outcome import markdown, percentile, print_progress
from loadtest.processes import exit_on_sigterm
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.loadtest.server_address import raise_file_limit

SOURCES = 16
SETTLE_S = 2.0  # until the established have sent what they usually send
STORM_LIMIT_S = 30.0
AFTER_S = 2.0  # the round trips of the time right after a storm count, and what still goes to Redis
LIMIT_MS = 250.0  # for an answer to the established
HEAD = (
    "granted | refused or lost | s to the last | logins/s | µs of CPU a login | generator "
    f"| answers: p50 ms | p99 | max | later than {LIMIT_MS:.0f} ms"
)


@dataclass(frozen=True)
class Storm:
    """The result of one storm."""

    seconds: float  # from the first connect to the last login granted
    cpu_us: float  # of the server's processor time a login
    share: float  # of a core, that this process used meanwhile
    granted: int  # clients that were logged in at the end
    refused: int  # connections that the server ended, with a reason or without
    trips_ms: list[float]  # round trips of the established
    late: int  # answers to them that came too late, or not at all

    def cells(self) -> list[str]:
        p50, p99, most = (percentile(self.trips_ms, share) for share in (0.5, 0.99, 1.0))
        return [
            *(f"{self.granted:,}", str(self.refused), f"{self.seconds:.2f}"),
            *(f"{self.granted / self.seconds:,.0f}", f"{self.cpu_us:.0f}", f"{self.share:.0%}"),
            *(f"{p50:.0f}", f"{p99:.0f}", f"{most:.0f}", str(self.late)),
        ]


def storm(server: Running, clients: int) -> Storm:
    """Let the clients log in at the same moment."""
    with (
        ClientLoop((server.host, server.port), sources=SOURCES) as loop,
        probing(server.host, server.port, SETTLE_S, STORM_LIMIT_S / 3) as probed,
    ):
        for number in range(clients):
            LoopClient(loop, f"storm-{number}")
        time.sleep(SETTLE_S + 1.0)
        cpu, own, started = usage.cpu_seconds(server.pid), time.process_time(), time.monotonic()
        loop.connect_all(loop.members, per_second=float("inf"))
        # One that lost its connection logs in twice.
        loop.run(STORM_LIMIT_S, lambda: loop.logins >= clients <= loop.count_logged_in())
        seconds, granted = time.monotonic() - started, loop.count_logged_in()
        share = (time.process_time() - own) / seconds
        time.sleep(AFTER_S)
        cpu = usage.cpu_seconds(server.pid) - cpu
        refused = loop.endings.total()
    trips_ms = probed.trips_ms[ALWAYS]
    late = sum(trip > LIMIT_MS for trip in trips_ms) + probed.unanswered
    return Storm(seconds, cpu / max(1, granted) * 1e6, share, granted, refused, trips_ms, late)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storm", description=__doc__)
    parser.add_argument("--clients", type=from_1, default=15_000)
    parser.add_argument("--rounds", type=from_1, default=3)
    arguments = parser.parse_args()
    usage.require_linux()
    raise_file_limit()
    found = []
    for number in range(arguments.rounds):
        print_progress(f"round {number + 1} of {arguments.rounds} …")
        with running(contenders(512)[OWN]) as server:
            found.append(storm(server, arguments.clients))
    print(markdown(HEAD, (each.cells() for each in found)))
    print(
        f"medians: {statistics.median(each.seconds for each in found):.2f} s to the last login, "
        f"{statistics.median(each.cpu_us for each in found):.0f} µs of CPU a login"
    )
    passed = all(each.granted == arguments.clients and each.trips_ms and not each.late for each in found)
    return 0 if passed else 1


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
