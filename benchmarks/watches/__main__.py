"""``python -m benchmarks.watches``: clients that watch their friends, and every view held against the truth.

So many clients log in at one server with several workers and watch their friends: a graph with realistic
degrees (`benchmarks.watches.graph`), the same for all servers. After a quiet period users change for as long:
of a hundred who do something, 40 go away and come back, 20 set their meta, 25 log out and in again, 15 fall
silent until their session ends. At the end, with some still away or gone, each view is compared with the
state in Redis, that state with what the client did, and each event with the pushes of all clients that have
watched all the time: ids may not fall, and none may be missing or doubled.

Compared in one run: `presence`, `presence, batch` (clients that say `batch`), `mosquitto` (one retained topic
a user, up to 19,900 clients), and with ``--also NAME=PYTHON`` the server that another Python has installed.

CPU is user and kernel time of all the server's processes, and beside it that of Redis, less that of the
quiet period, divided by the changes delivered; the logins and watches of users who return are in it. Latency
is from right before the causing client sent until a watcher has read the push. Memory is that of the workers
that belongs to no file, after one client in ten watches and after all do, so that what a distinct user and
what a further watch take follow from two equations. Bytes on the wire are those of frames, without TCP's
headers.

``--faults`` restarts Redis, with and without its data, replaces all workers, and has a replica take over,
while users change: `benchmarks.watches.faults`.

Results go to ``--out DIR`` as ``watches.md`` and ``watches.json``; the exit status is 1 if a promise was
broken. Needs Linux, and the ``loadtest`` and ``embedded`` extras.

Tests: `tests/benchmarks/test_watches.py`, `tests/system/benchmarks/test_watches.py`.
"""

import argparse
import contextlib
import gc
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.watches.faults import FaultFigures, FaultLoad, fault_table, play_faults
from benchmarks.watches.graph import FriendGraph, random_graph
from benchmarks.watches.play import WatchesRun, WatchFigures
from benchmarks.watches.subjects import (
    MOSQUITTO,
    MOSQUITTO_CONNECTIONS,
    SubjectKind,
    running_subject,
    subject_kinds,
)
from loadtest import usage
from loadtest.arguments import above_0, from_1
from loadtest.outcome import markdown, print_progress, print_verdict, write_results
from loadtest.processes import exit_on_sigterm
from presence.loadtest.server_address import raise_file_limit

KEEPALIVE_SHARE = 0.4  # of the idle time-out, as the protocol says
ROWS = {
    "clients": "{clients:,}",
    "watches": "{watches:,}",
    "workers": "{workers}",
    "distinct watched users, a worker": "{distinct_each:,.0f}",
    "B of a worker per distinct watched user": "{bytes_per_distinct:,.0f}",
    "B per further watch": "{bytes_per_watch:,.1f}",
    "MB of all workers for watching": "{watching_mb:,.1f}",
    "B per client without watches": "{bytes_per_client:,.0f}",
    "KB of Redis per worker for watching": "{redis_kb:,.0f}",
    "all watch: seconds": "{storm_s:.1f}",
    "all watch: p99 of an answer, ms": "{storm_p99_ms:,.0f}",
    "all watch: µs of server, a watch": "{storm_cpu_us:,.0f}",
    "all watch: µs of Redis": "{storm_redis_us:,.0f}",
    "all watch: commands in Redis": "{storm_redis_calls:,}",
    "B of a state in an answer": "{answer_bytes:.1f}",
    "changes": "{changes:,}",
    "delivered changes": "{pushes:,}",
    "µs of server per delivered change": "{cpu_us:.1f}",
    "µs of Redis": "{redis_us:.2f}",
    "change to push, p50 ms": "{p50_ms:.1f}",
    "p99 ms": "{p99_ms:.1f}",
    "p99 by cause": "{causes}",
    "B on the wire per change": "{push_bytes:.1f}",
    "changes per packet": "{changes_per_packet:.2f}",
    "quiet: share of a core": "{quiet_cpu:.1%}",
    "views compared": "{views:,}",
    "deliveries checked, missing": "{expected:,}, {missing:,}",
    "load: late, ms at most": "{late_max_ms:.0f}",
}


def measure(kind: SubjectKind, graph: FriendGraph, given: argparse.Namespace) -> WatchFigures:
    flags = ("--idle-timeout", f"{given.idle_timeout:g}")
    with (
        running_subject(kind, given.workers, *flags) as subject,
        contextlib.closing(WatchesRun(subject, graph, given.seed, given.rest)) as run,
    ):
        run.rest()
        run.log_in(given.logins, KEEPALIVE_SHARE * given.idle_timeout)
        run.watch(given.at_once)
        run.change(per_second(given), given.minutes * 60)
        return run.finish()


def fault_load(given: argparse.Namespace) -> FaultLoad:
    return FaultLoad(
        workers=given.workers,
        per_second=per_second(given),
        logins=given.logins,
        at_once=given.at_once,
        idle_timeout=given.idle_timeout,
        keepalive_s=KEEPALIVE_SHARE * given.idle_timeout,
        rest_s=given.rest,
        seed=given.seed,
    )


def per_second(given: argparse.Namespace) -> float:
    """Return how many users begin to do something a second."""
    return float(given.clients * given.changes / 100 / 60)


def table(found: Sequence[WatchFigures]) -> str:
    columns = []
    for each in found:
        more = {
            "distinct_each": each.distinct / max(1, each.workers),
            "redis_kb": each.redis_watching_bytes / 1000,
            "storm_p99_ms": each.storm_p99_s * 1000,
            "causes": ", ".join(f"{why} {some['p99_ms']:.0f}" for why, some in each.latencies.items()),
        }
        columns.append([form.format(**asdict(each), **more) for form in ROWS.values()])
    rows = zip(*columns, strict=True)
    body = [(name, *cells) for name, cells in zip(ROWS, rows, strict=True)]
    return markdown(["", *(each.name for each in found)], body)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--clients", type=from_1, default=20_000)
    add("--friends", type=above_0, default=150.0, help="of each client, on average (150)")
    add("--workers", type=from_1, default=6)
    add("--changes", type=above_0, default=3.0, help="percent of the users who do something, a minute (3)")
    add("--minutes", type=above_0, default=1.0, help="quiet, and of changes (1)")
    add("--logins", type=above_0, default=2000.0, help="a second, while all log in (2000)")
    add("--at-once", type=from_1, default=60, help="unanswered watches while all begin to watch (60)")
    add("--rest", type=above_0, default=3.0, help="seconds after each phase (3)")
    add("--idle-timeout", type=above_0, default=30.0, help="the server's T, seconds (30)")
    add("--faults", action="store_true", help="faults of the first server, instead of figures of all")
    add("--servers", default="", help="semicolon-separated names (all)")
    add("--also", action="append", default=[], metavar="NAME=PYTHON", help="another installation")
    add("--seed", type=int, default=1, help="of the graph, and of what users do (1)")
    add("--out", type=Path, help="directory for watches.md and watches.json")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    usage.require_linux()
    given = parse(words)
    raise_file_limit()
    kinds = subject_kinds(sys.executable, dict(each.split("=", 1) for each in given.also))
    names = [name.strip() for name in given.servers.split(";")] if given.servers else [*kinds]
    if unknown := sorted({*names} - {*kinds}):
        raise SystemExit(f"no such server: {', '.join(unknown)}; there are {'; '.join(kinds)}")
    gc.disable()  # millions of views pass through here, and nothing makes cycles
    found = []
    for name in [] if given.faults else names:
        kind = kinds[name]
        if kind.broker is not None and (why := kind.broker.missing()):
            print_progress(f"{name} is skipped: {why}")
            continue
        clients = min(given.clients, MOSQUITTO_CONNECTIONS) if name == MOSQUITTO else given.clients
        figures = measure(kind, random_graph(clients, given.friends, given.seed), given)
        print_progress(table([figures]))
        for broken in figures.broken:
            print_progress(f"{name}: {broken}")
        found.append(figures)
    faults: list[FaultFigures] = []
    if given.faults:
        kind = next(kinds[name] for name in names if kinds[name].broker is None)
        faults = play_faults(kind, random_graph(given.clients, given.friends, given.seed), fault_load(given))
        text = fault_table(faults)
    else:
        text = table(found)
    print(text)
    if given.out:
        rows = {"servers": [asdict(each) for each in found], "faults": [asdict(each) for each in faults]}
        write_results(given.out, "watches", text, rows)
    failed = [f"{each.name}: {what}" for each in found for what in each.broken]
    failed += [f"{each.name}: {what}" for each in faults for what in each.broken]
    return print_verdict("benchmarks.watches", failed)


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
