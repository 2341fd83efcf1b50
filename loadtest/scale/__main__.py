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
import json
import sys
import time
from pathlib import Path

from loadtest import usage
from loadtest.bench.servers import floor, running
from loadtest.connection import parse_host, raise_file_limit
from loadtest.processes import running_server
from loadtest.scale.fleet import running_fleet
from loadtest.scale.play import Play
from loadtest.scale.reader import Reader
from loadtest.scale.report import Result
from loadtest.scale.verdict import Promise
from loadtest.servers import PresenceServer

MAXEVENTS = 512  # that a floor takes at once
SETTLE_S = 1.0  # after the start, before memory is looked at


def play_server(result: Result, server: PresenceServer, arguments: argparse.Namespace) -> None:
    """Play everything on the server."""
    pid, promise = server.process.pid, result.promise
    time.sleep(SETTLE_S)
    result.empty = usage.memory(*usage.server_processes(pid))
    address = parse_host(server.host)
    with (
        contextlib.closing(Reader(server.redis_url)) as reader,
        running_fleet([address], arguments.connections, arguments.processes) as fleet,
    ):
        play = Play(fleet, lambda: usage.server_processes(pid), reader)
        result.ramps.append(play.ramp(arguments.logins, arguments.beat[0]))
        result.holds += [play.hold(beat_s, arguments.hold) for beat_s in arguments.beat]
        result.ends["silence"] = play.silence(promise)
        result.ramps.append(play.ramp(arguments.logins, arguments.beat[0]))
        result.ends["last_beat"] = play.last_beat(arguments.last_beat, promise)


def play_floors(result: Result, arguments: argparse.Namespace) -> None:
    """Play the holds on C floors."""
    with contextlib.ExitStack() as stack:
        floors = [stack.enter_context(running(floor(MAXEVENTS))) for _ in range(arguments.workers)]
        addresses = [(each.host, each.port) for each in floors]
        fleet = stack.enter_context(running_fleet(addresses, arguments.connections, arguments.processes))
        play = Play(fleet, lambda: [each.pid for each in floors])
        play.ramp(arguments.logins, arguments.beat[0])
        seconds = min(arguments.hold, arguments.floor_hold)
        result.floors += [play.hold(beat_s, seconds) for beat_s in arguments.beat]


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
    arguments = parser.parse_args(words)
    if max(*arguments.beat, arguments.beat[0] + arguments.last_beat) >= arguments.idle_timeout:
        parser.error("whoever beats more seldom than the idle time-out, the last beat included, is offline")
    return arguments


def main() -> int:
    """Play, print the tables, and say what was broken."""
    arguments = parse()
    raise_file_limit()
    gc.disable()  # 400,000 events are kept, and nothing here makes cycles
    promise = Promise(arguments.idle_timeout, arguments.tick)
    result = Result(arguments.connections, arguments.workers, arguments.processes, promise)
    flags = ["--workers", str(arguments.workers), "--no-admin"]
    flags += ["--idle-timeout", str(arguments.idle_timeout), "--tick", str(arguments.tick)]
    flags += ["--redis", arguments.redis] if arguments.redis else []
    with running_server(*flags) as server:
        play_server(result, server, arguments)
    if reason := floor(MAXEVENTS).missing():
        print(f"no C floors: {reason}", file=sys.stderr)
    elif arguments.floor_hold:
        play_floors(result, arguments)
    print(result.as_markdown())
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "scale.md").write_text(result.as_markdown() + "\n")
        (arguments.out / "scale.json").write_text(json.dumps(result.as_json(), indent=1) + "\n")
    broken = result.broken()
    for ends in result.ends.values():
        for example in ends.examples:
            print(example, file=sys.stderr)
    print("loadtest.scale: " + ("passed" if not broken else "FAILED: " + "; ".join(broken)))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
