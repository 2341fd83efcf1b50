"""``python -m loadtest.scale``: 100,000 connections on one machine, held, silenced, and each event judged.

Starts a server with several workers and several load generators. All log in; they beat for a while at one
interval, then at another; fall silent; log in again, send one last beat within 2 s, and fall silent. What
the server used is measured, every event is held against what that client did. Then the same load goes to as
many C floors. The exit status is 1 if a promise was broken. Needs the ``loadtest`` and ``embedded`` extras,
and Linux.
"""

import argparse
import contextlib
import gc
import sys
import time
from pathlib import Path

from loadtest import usage
from loadtest.bench.servers import floor, running
from loadtest.connection import raise_file_limit
from loadtest.outcome import say
from loadtest.processes import running_server
from loadtest.report import Report
from loadtest.scale.fleet import Fleet
from loadtest.scale.play import MB, Play, Reader
from loadtest.scale.verdict import Promise

MAXEVENTS = 512  # that a floor takes at once
SETTLE_S = 1.0  # after the start, before memory is looked at


def play_server(report: Report, given: argparse.Namespace) -> None:
    """Play everything on the server."""
    flags = ["--workers", str(given.workers), "--no-admin"]
    flags += ["--idle-timeout", str(given.idle_timeout), "--tick", str(given.tick)]
    flags += ["--redis", given.redis] if given.redis else []
    promise = Promise(given.idle_timeout, given.tick)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_server(*flags))
        pid = server.process.pid
        time.sleep(SETTLE_S)
        empty = usage.memory(*usage.server_processes(pid))
        reader = stack.enter_context(contextlib.closing(Reader(server.redis_url)))
        fleet = stack.enter_context(
            contextlib.closing(Fleet([server.address], given.connections, given.processes))
        )
        name = f"{given.workers} workers"
        play = Play(name, report, fleet, lambda: usage.server_processes(pid), reader)
        play.ramp(given.logins, given.beat[0], given.connections)
        for beat_s in given.beat:
            play.hold(beat_s, given.hold)
        play.silence(promise)
        play.ramp(given.logins, given.beat[0], given.connections, times=2)
        play.last_beat(given.last_beat, promise)
    each = (max(hold["pss"] for hold in report.figures[name]) - empty.pss) / given.connections
    report.rows["memory without Redis"] = (
        f"PSS {empty.pss / MB:.0f} MB before the first connection, then {each:,.0f} bytes a connection"
    )


def play_floors(report: Report, given: argparse.Namespace) -> None:
    """Play the holds on C floors."""
    with contextlib.ExitStack() as stack:
        floors = [stack.enter_context(running(floor(MAXEVENTS))) for _ in range(given.workers)]
        addresses = [(each.host, each.port) for each in floors]
        fleet = stack.enter_context(contextlib.closing(Fleet(addresses, given.connections, given.processes)))
        play = Play("C floors", report, fleet, lambda: [each.pid for each in floors])
        play.ramp(given.logins, given.beat[0], given.connections)
        for beat_s in given.beat:
            play.hold(beat_s, min(given.hold, given.floor_hold))
    names = (f"{given.workers} workers", "C floors")
    own, theirs = ([hold["cpu_us"] for hold in report.figures[name]] for name in names)
    ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(own, theirs, strict=True))
    report.rows["µs of CPU a keepalive ÷ C floors"] = ratios


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.scale", description=__doc__)
    add = parser.add_argument
    add("--connections", type=int, default=100_000)
    add("--workers", type=int, default=6, help="of the server, and C floors")
    add(
        "--processes", type=int, default=6, help="of the load generator; each needs a descriptor a connection"
    )
    add("--beat", type=float, nargs="+", default=[12.0, 28.0], help="seconds between beats, a hold for each")
    add("--hold", type=float, default=180.0, help="seconds that each interval is held")
    add("--last-beat", type=float, default=2.0, help="seconds in which all send one last beat")
    add("--logins", type=float, default=4000.0, help="a second, while all log in")
    add("--idle-timeout", type=float, default=30.0, help="the server's T, seconds")
    add("--tick", type=float, default=1.0, help="the server's tick, seconds")
    add("--redis", help="URL of a Redis that is there; without it the server brings its own")
    add("--floor-hold", type=float, default=60.0, help="seconds that the C floors are held; 0: no floors")
    add("--out", type=Path, help="directory for scale.md and scale.json")
    given = parser.parse_args(words)
    if max(*given.beat, given.beat[0] + given.last_beat) >= given.idle_timeout:
        parser.error("whoever beats more seldom than the idle time-out, the last beat included, is offline")
    return given


def main() -> int:
    """Play, print the tables, and say what was broken."""
    given = parse()
    raise_file_limit()
    gc.disable()  # 400,000 events are kept, and nothing here makes cycles
    report = Report(f"{given.connections:,} connections, {given.processes} generators")
    play_server(report, given)
    if reason := floor(MAXEVENTS).missing():
        say(f"no C floors: {reason}")
    elif given.floor_hold:
        play_floors(report, given)
    report.rows |= usage.machine()
    print(report.table())
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "scale.md").write_text(report.table() + "\n")
        (given.out / "scale.json").write_text(report.as_json() + "\n")
    print("loadtest.scale: " + ("FAILED: " + "; ".join(report.broken) if report.broken else "passed"))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
