"""``python -m loadtest.bench.storm``: thousands of clients log in at the same moment.

One server, some clients that are logged in already and whose keepalives ask for answers all the while, and
then the storm. Prints the seconds until the last login was granted, logins a second, processor time a login
(all threads of the server, the share of what goes to Redis included), and the round trips of the others.
"""

import argparse
import json
import select
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from loadtest import usage
from loadtest.bench.servers import OWN, Running, contenders, running
from loadtest.clients import Clients
from loadtest.connection import raise_file_limit, source_addresses
from loadtest.swarm import Swarm

SETTLE_S = 2.0  # until the established have sent what they usually send
STORM_LIMIT_S = 30.0
AFTER_S = 2.0  # the round trips of the time right after a storm count, and what still goes to Redis
LIMIT_MS = 250.0  # for an answer to the established
HEAD = (
    "| granted | refused | s to the last | logins/s | µs of CPU a login | generator | answers: p50 ms | p99 "
    f"| max | later than {LIMIT_MS:.0f} ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Storm:
    """What came of one storm.

    Attributes:
        seconds: from the first connect to the last login granted.
        cpu_us: of the server's processor time a login.
        generator_share: of a core, that this process used meanwhile.
        granted, refused: logins.
        trips_ms: round trips of the established.
        unanswered: keepalives of theirs.
    """

    seconds: float
    cpu_us: float
    generator_share: float
    granted: int
    refused: int
    trips_ms: list[float]
    unanswered: int


def storm(server: Running, clients: int) -> Storm:
    """Let so many clients log in at once."""
    swarm = Swarm(
        (server.host, server.port), Clients("storm", clients), sources=source_addresses(server.host, 16)
    )
    probe_s = STORM_LIMIT_S / 3
    command = [sys.executable, "-m", "loadtest.bench.prober", server.host, str(server.port)]
    prober = subprocess.Popen([*command, str(SETTLE_S), str(probe_s)], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(SETTLE_S + 1.0)
        waiting = select.poll()
        waiting.register(swarm.fileno(), select.POLLIN)
        cpu, own, begun = usage.cpu_seconds(server.pid), time.process_time(), time.monotonic()
        swarm.bring(range(clients), begun)
        ended = begun
        while swarm.counts.logins < clients and time.monotonic() - begun < STORM_LIMIT_S:
            due = swarm.step(time.monotonic())
            ended = time.monotonic()
            waiting.poll(min(1.0, max(0.0, due - ended)) * 1000)
        share = (time.process_time() - own) / (ended - begun)
        time.sleep(AFTER_S)
        cpu = usage.cpu_seconds(server.pid) - cpu
        said = json.loads(prober.communicate(timeout=2 * STORM_LIMIT_S)[0])
    finally:
        prober.kill()
        swarm.close()
    counts = swarm.counts
    return Storm(
        ended - begun,
        cpu / max(1, counts.logins) * 1e6,
        share,
        counts.logins,
        counts.refused.total(),
        said["trips_ms"]["acknowledged, always"],
        said["unanswered"],
    )


def main() -> int:
    """Run the rounds; exit 1 if a login was not granted or an answer came too late."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.storm", description=__doc__)
    parser.add_argument("--clients", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    usage.require_linux()
    raise_file_limit()
    rows, passed = [], True
    print(HEAD)
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds} …", file=sys.stderr, flush=True)
        with running(contenders(512)[OWN]) as server:
            came = storm(server, arguments.clients)
        trips = sorted(came.trips_ms)
        late = sum(trip > LIMIT_MS for trip in trips) + came.unanswered
        passed &= came.granted == arguments.clients and not late and bool(trips)
        rows.append(came)
        print(
            f"| {came.granted:,} | {came.refused} | {came.seconds:.2f} | {came.granted / came.seconds:,.0f} "
            f"| {came.cpu_us:.0f} | {came.generator_share:.0%} | {statistics.median(trips):.0f} "
            f"| {trips[len(trips) * 99 // 100]:.0f} | {trips[-1]:.0f} | {late} |"
        )
    print(
        f"medians: {statistics.median(each.seconds for each in rows):.2f} s to the last login, "
        f"{statistics.median(each.cpu_us for each in rows):.0f} µs of CPU a login"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
