"""``python -m benchmarks.scale``: 100,000 connections on one machine, and every event judged.

A server with 6 workers and 6 load generators of 16,667 connections each. The run:

1. all log in, 4,000 per second;
2. a keepalive each 12 s (8,300/s) for 180 s, then each 28 s (3,600/s) for 180 s: no connection lost, no
   user offline;
3. all fall silent: exactly one offline event each, between T and T + tick + 1 s after the client's own last
   packet, as a subscriber reads it;
4. all log in, send one last keepalive within 2 s and fall silent: 5 s from the first offline event to the
   last;
5. the loads of step 2 against 6 C floors (`benchmarks/floor.c`, if gcc is installed), connections
   spread at random.

Measurement. CPU of a keepalive is that of supervisor and workers by their own clocks, everything included
but Redis, divided by the keepalives sent; most of the kernel's work for a loopback packet is charged to its
sender. Memory is the larger of two samples; PSS divides shared pages, RSS counts them for each process. The
truth about a client is the moments before and after its last packet was handed to the kernel, on the clock
that all processes share. Load is open-loop, in slots of 2 ms; a remark says so if p99 of its lateness is
above 0.25 s.

A million connections, of which 100,000 fall silent, take 54 workers and generators of 18,519 each:
``--connections 1000000 --workers 54 --processes 54 --logins 3500 --idle-timeout 120 --beat 48 --hold 600
--silent 100000 --slack 2 --floor-hold 0``.

Results go to ``--out DIR`` as ``scale.md`` and ``scale.json``; the exit status is 1 if a promise was
broken. Needs Linux, the ``loadtest`` and ``embedded`` extras, and for the full size 2 GB of memory and
20,000 descriptors per process.
"""

import argparse
import contextlib
import gc
import sys
import time
from pathlib import Path

from benchmarks.contenders import floor, running
from benchmarks.scale.fleet import Fleet
from benchmarks.scale.play import MB, Reader, ScaleRun
from benchmarks.scale.verdict import ScaleDeadlines
from loadtest import usage
from loadtest.arguments import above_0, at_least_0, from_1
from loadtest.outcome import print_progress, print_verdict
from loadtest.processes import exit_on_sigterm
from loadtest.scenario_report import ScenarioReport
from loadtest.servers import PresenceServer
from presence.loadtest.server_address import raise_file_limit

MAXEVENTS = 512  # that a floor takes per call
SETTLE_S = 1.0  # after the start, before memory is looked at


def play_server(report: ScenarioReport, given: argparse.Namespace) -> None:
    flags = ["--workers", str(given.workers), "--no-admin"]
    flags += ["--idle-timeout", str(given.idle_timeout), "--tick", str(given.tick)]
    flags += ["--redis", given.redis] if given.redis else []
    promise = ScaleDeadlines(given.idle_timeout, given.tick, given.slack)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PresenceServer(*flags, forward_errors=True))
        pid = server.process.pid
        time.sleep(SETTLE_S)
        empty = usage.memory(*usage.server_processes(pid))
        reader = stack.enter_context(contextlib.closing(Reader(server.redis_url)))
        fleet = stack.enter_context(
            contextlib.closing(Fleet([server.address], given.connections, given.processes))
        )
        name = f"{given.workers} workers"
        play = ScaleRun(name, report, fleet, lambda: usage.server_processes(pid), reader)
        play.ramp(given.logins, given.beat[0], given.connections)
        for beat_s in given.beat:
            play.hold(beat_s, given.hold)
        play.silence(promise, given.silent / given.connections if given.silent else 1.0)
        if not given.silent:
            play.ramp(given.logins, given.beat[0], given.connections, times=2)
            play.last_keepalive(given.last_beat, promise)
        report.broken += [f"server: {failure}" for failure in server.failures()]
    each = (max(hold["pss"] for hold in report.metrics[name]) - empty.pss) / given.connections
    report.rows["memory without Redis"] = (
        f"PSS {empty.pss / MB:.0f} MB before the first connection, then {each:,.0f} bytes a connection"
    )


def play_floors(report: ScenarioReport, given: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        floors = [stack.enter_context(running(floor(MAXEVENTS))) for _ in range(given.workers)]
        addresses = [(each.host, each.port) for each in floors]
        fleet = stack.enter_context(contextlib.closing(Fleet(addresses, given.connections, given.processes)))
        play = ScaleRun("C floors", report, fleet, lambda: [each.pid for each in floors])
        play.ramp(given.logins, given.beat[0], given.connections)
        for beat_s in given.beat:
            play.hold(beat_s, min(given.hold, given.floor_hold))
    names = (f"{given.workers} workers", "C floors")
    own, theirs = ([hold["cpu_us"] for hold in report.metrics[name]] for name in names)
    ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(own, theirs, strict=True))
    report.rows["µs of CPU a keepalive ÷ C floors"] = ratios


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--connections", type=from_1, default=100_000)
    add("--workers", type=from_1, default=6, help="of the server, and C floors")
    add(
        "--processes",
        type=from_1,
        default=6,
        help="of the load generator; each needs a descriptor a connection",
    )
    add("--beat", type=above_0, nargs="+", default=[12.0, 28.0], help="seconds between beats, one hold each")
    add("--hold", type=above_0, default=180.0, help="seconds that each interval is held")
    add(
        "--silent",
        type=from_1,
        help="about how many fall silent at the end, beside others that stay; else all do, twice",
    )
    add("--slack", type=at_least_0, default=1.0, help="seconds beyond T and tick until an event must be read")
    add("--last-beat", type=above_0, default=2.0, help="seconds in which all send one last beat")
    add("--logins", type=above_0, default=4000.0, help="a second, while all log in")
    add("--idle-timeout", type=above_0, default=30.0, help="the server's T, seconds")
    add("--tick", type=above_0, default=1.0, help="the server's tick, seconds")
    add("--redis", help="URL of a Redis that is there; without it the server brings its own")
    add("--floor-hold", type=at_least_0, default=60.0, help="seconds that C floors are held; 0: no floors")
    add("--out", type=Path, help="directory for scale.md and scale.json")
    given = parser.parse_args(words)
    if max(*given.beat, given.beat[0] + given.last_beat) >= given.idle_timeout:
        parser.error("--beat, with --last-beat added, must be shorter than --idle-timeout")
    if given.processes > given.connections:
        parser.error("--processes must not be more than --connections")
    if given.silent and given.silent > given.connections:
        parser.error("--silent must not be more than --connections")
    return given


def main() -> int:
    given = parse()
    usage.require_linux()
    raise_file_limit()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    gc.disable()  # 400,000 events are kept, and nothing here makes cycles
    report = ScenarioReport(f"{given.connections:,} connections, {given.processes} generators")
    play_server(report, given)
    if reason := floor(MAXEVENTS).missing():
        print_progress(f"no C floors: {reason}")
    elif given.floor_hold:
        play_floors(report, given)
    report.rows |= usage.machine_facts()
    print(report.table())
    if given.out:
        (given.out / "scale.md").write_text(report.table() + "\n")
        (given.out / "scale.json").write_text(report.as_json() + "\n")
    return print_verdict("benchmarks.scale", report.broken)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
