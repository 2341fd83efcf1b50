"""``python -m benchmarks.soak``: millions of visits, everything at once; does anything grow, or slow down?

One server with ``--workers`` workers and tokens, and meanwhile, all the time:

- visitors, who log in with a token, log out half a second later, and return: ``--rate`` per second until
  there were ``--visits``; 3 % of them over WebSocket;
- a crowd of ``--crowd`` devices (locust, mixed scenario, T = 3 s): they send keepalives and messages, fall
  silent, lose their connection, log out; each time that they come online they go to rooms, watch rooms and
  others, renew their token and show a status. Every second one watches the roster of its user as well, every
  third takes its pushes in batches, every fifth is quiet, every eleventh speaks WebSocket. All but one of the
  rooms have other names every 10 s;
- a backend that puts and changes the rosters of the crowd;
- consumer groups that are made, read for a few seconds and are removed;
- restarts of Redis, with its data, each ``--restart-every`` seconds.

What is judged: every event of the crowd against what its device did; every event of all, which must
alternate for each user; as many online and offline events of visitors as logins were granted. Members of
rooms in Redis must be those of the records, without the help of the server's own comparison; when all have
left, nothing of rooms may be left. Rosters must be as they were put. Each kind of client must have done, and
been sent, what it is there for.

Each 10 s memory, descriptors, threads, the tables of the server and the data of Redis are sampled. A line is
fitted to each figure after the warm-up (the first ``--warm-up`` of the time); one that surely grows, by more
than 1 %, is a broken promise. Of latencies the last quarter is compared with the first one after the warm-up.
A figure with too few samples fails the run, as does one of rooms, rosters, quiet clients and WebSocket that
was 0 all the time. ``--events-only`` leaves growth unjudged, for a run that is too short.

``--name-growth`` also says which types of the server's objects have grown between the warm-up and the end.

Ten million visits at 2,200 per second take 80 minutes. Results go to ``--out DIR`` as ``soak.md``,
``soak.json`` and ``soak.png``, all samples as ``samples.json``; the exit status is 1 if a promise was broken.
Needs Linux and the ``loadtest`` and ``embedded`` extras.
"""

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from http.client import HTTPException
from pathlib import Path

import psutil

from benchmarks import plots
from benchmarks.soak import growth, kinds
from benchmarks.soak.load import RosterKeeper, Subscribers, Visitors
from benchmarks.soak.trend import BLOCKS, trend
from benchmarks.soak.watch import (
    DATA,
    DESCRIPTORS,
    GAUGES,
    MEMORY,
    PROCESS_FIGURES,
    ROOM_CHANGES,
    ROOM_DIFFERENCES,
    THREADS,
    USED,
    EventJudge,
    Samples,
    is_table,
    lasting_differences,
    rooms_left,
    sample,
    scrape,
)
from benchmarks.visits import VisitReport
from loadtest import usage
from loadtest.arguments import above_0, from_1, share
from loadtest.outcome import BrokenPromises, failed_checks, markdown, print_progress, print_verdict
from loadtest.processes import LocustFailed, LocustReport, LocustRow, LocustRun, exit_on_sigterm
from loadtest.redis_contents import Data
from loadtest.scenario_report import ScenarioReport
from loadtest.servers import PRESENCE, PresenceServer, free_port, wait_for
from presence.auth.token_signer import key_set, make_key
from presence.common.errors import StoreError, StoreUnavailable
from presence.loadtest.server_address import raise_file_limit
from presence.store.redis_client import RedisError

IDLE_TIMEOUT_S = 3.0
GRACE_S = 1.0
TICK_S = 1.0
SLACK_S = 10.0  # for a restart of Redis, which delays events by seconds
ACTION_EVERY_S = 3.0
STREAM_MAXLEN = 100_000  # of users 20 s; of rooms 6 min, so it is full within the warm-up, too
SAMPLE_INTERVAL_S = 10.0
LEAST_SAMPLES = 40
STRETCH_S = 60.0  # of visits at most, with a login p99 for each,
LEAST_STRETCHES = 20  # and at least so many, of which some belong to the warm-up,
LEAST_STRETCH_S = 5.0  # unless the run is too short
CROWD = Path(__file__).with_name("locust_crowd.py")
CROWD_USERS = 500  # devices of one locust user
STRETCH_TIMEOUT_S = 60.0  # beyond its length: then its process was stopped
MAX_FAILED_LOOKS = 0.5  # of all; with fewer figures nothing can be said to stay the same
CROWD_START_S = 30.0  # of locust, at most, until a device is online: a busy machine takes its time
CROWD_LEAD_S = 5.0  # from the start of the crowd until the first visit, usually
CROWD_END_S = 5.0  # by so much the crowd may end before its time
STRETCH_END_S = 1.0  # until the last visitors of a stretch have left
LAST_EVENTS_S = 20.0
SLOWER = 2.0  # a p99 at the end above so many times that of the beginning is a broken promise,
LEAST_SLOWER_MS = 50.0  # unless the difference is below this
TOO_FEW = "too few samples to say whether it grows"
LAST_COUNT = 0.97  # share of the time after which objects are counted the second time
LATENCIES = ("login", "WebSocket login", "detection", "event read")
WEBSOCKET_SHARE = 0.03  # of the visits
MAX_LISTED_MEMBERS = 50  # so the lobby is pushed as a count, the other rooms with their members
LOOK_ERRORS = (OSError, HTTPException, ValueError, RedisError, psutil.Error)  # one look fails, others may not


class Soak:
    """One run.

    Attributes:
        samples: all figures over time.
        visits: begun; a server at its limits refuses some.
        granted, finished: of these, and ended as they should.
        visits_over_websocket: granted, of these.
        restarts: of Redis.
        rooms: members of rooms in Redis that are not those of the records.
        room_changes: joined, left, occupied and vacated, known from `finish` on.
        objects: what the server's take, by type, after the warm-up and at the end; none if not asked for.
        looks, failed_looks: at the figures.
    """

    def __init__(
        self,
        given: argparse.Namespace,
        data: Data,
        server: PresenceServer,
        judge: EventJudge,
        crowd: LocustRun,
        crowd_ends_at: float,
        folder: Path,
    ) -> None:
        self.samples = Samples()
        self.visits = self.granted = self.finished = self.restarts = 0
        self.visits_over_websocket = 0
        self.looks = self.failed_looks = 0
        self.rooms = BrokenPromises()
        self.room_changes = 0.0
        self.objects: list[Counter[str]] = []
        self._given, self._data, self._server, self._judge = given, data, server, judge
        self._crowd, self._crowd_ends_at = crowd, crowd_ends_at
        self._sample_interval_s = min(SAMPLE_INTERVAL_S, given.visits / given.rate / LEAST_SAMPLES)
        self._next_sample = self._next_progress = now = time.monotonic()
        shares = (given.warm_up, LAST_COUNT) if given.name_growth else ()
        self._folder, self._counts_due = folder, [now + each * given.visits / given.rate for each in shares]
        self._next_restart = time.monotonic() + given.restart_every

    def play(self, visitors: Visitors, over_websocket: Visitors) -> None:
        """Let visitors come until there were as many as ordered, some of them over WebSocket.

        Raises:
            SystemExit: a part of the load is gone.
        """
        given, stretch_s = self._given, stretch_of(self._given.visits / self._given.rate)
        while self.visits < given.visits:
            try:
                stretches = [
                    visitors.play(given.rate * (1 - WEBSOCKET_SHARE), stretch_s),
                    over_websocket.play(given.rate * WEBSOCKET_SHARE, stretch_s),
                ]
                self._wait(stretches)
                reports = [each.result() for each in stretches]
            except (BrokenExecutor, OSError) as error:
                raise SystemExit(f"the visitors died, so their visits cannot be judged: {error}") from error
            for name, report in zip(("login", "WebSocket login"), reports, strict=True):
                self.visits += report.visits
                self.granted += len(report.login_ms)
                self.finished += report.finished
                self.samples.add_times(name, [each / 1000 for each in report.login_ms])
            self.visits_over_websocket += len(reports[1].login_ms)

    def _wait(self, stretches: Sequence["Future[VisitReport]"]) -> None:
        give_up_at = time.monotonic() + STRETCH_S + STRETCH_TIMEOUT_S
        while not all(stretch.done() for stretch in stretches):
            now = time.monotonic()
            if now >= give_up_at:
                raise SystemExit("the process of the visitors does not answer: its visits cannot be judged")
            if self._crowd.has_ended and now < self._crowd_ends_at - CROWD_END_S:
                raise SystemExit("the crowd has ended before its time: its events cannot be judged")
            if now >= self._next_restart:
                self._next_restart += self._given.restart_every
                self._restart_redis()
            if now >= self._next_sample:
                self._next_sample = now + self._sample_interval_s
                self.looks += 1
                try:
                    sample(self.samples, self._server, self._data)
                    for each in lasting_differences(self._data, SLACK_S):
                        self.rooms.note("a member of a room that is not the one of the records", each)
                except LOOK_ERRORS:  # the process for operators has the least priority
                    self.failed_looks += 1
                self.samples.add_times("detection", self._judge.take_detection_s())
                self.samples.add_times("event read", self._judge.take_age_s())
            if self._counts_due and now >= self._counts_due[0]:
                self._counts_due.pop(0)
                with contextlib.suppress(TimeoutError, OSError):  # the visits are judged nevertheless
                    self.objects.append(growth.ask(self._server, self._folder))
            if now >= self._next_progress:
                self._next_progress = now + STRETCH_S
                memory = self.samples.values.get(MEMORY, [math.nan])[-1]
                broken = len(self._judge.broken) + (self._judge.found.counts + self.rooms.counts).total()
                print_progress(
                    f"{self.visits:,} of {self._given.visits:,} visits, {self.restarts} restarts of Redis, "
                    f"{dict(self._judge.counts)}, memory {memory:.1f} MB, broken {broken}"
                )
            time.sleep(0.1)

    def finish(self, rosters: RosterKeeper) -> list[str]:
        """Return what is wrong with rosters, and with rooms that all have left."""
        try:
            wrong_rosters = rosters.wrong()
            wait_for(lambda: not rooms_left(self._data), LAST_EVENTS_S)
            left, metrics = rooms_left(self._data), scrape(self._server)
        except (*LOOK_ERRORS, StoreError, StoreUnavailable) as error:
            return [f"rooms and rosters cannot be judged: {type(error).__name__}: {error}"]
        self.room_changes, corrected = metrics[ROOM_CHANGES], metrics[ROOM_DIFFERENCES]
        return failed_checks(
            (wrong_rosters, f"{len(wrong_rosters)} rosters are not as they were put: {wrong_rosters[:3]}"),
            (left, f"Redis keeps something of {len(left)} rooms that all have left: {left[:3]}"),
            (corrected, f"the server had to correct {corrected:,.0f} members of rooms"),
        )

    def _restart_redis(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._data.client.shutdown(save=True)
        self._data.process.wait()
        self._data.start()
        self.restarts += 1


def stretch_of(seconds: float) -> float:
    """Return the length of a stretch of a run, in seconds."""
    return min(seconds, STRETCH_S, max(LEAST_STRETCH_S, seconds / LEAST_STRETCHES))


def run(given: argparse.Namespace, report: ScenarioReport) -> Soak:
    key = make_key("soak", "HS256")
    seconds = given.visits / given.rate
    seconds += math.ceil(seconds / stretch_of(seconds)) * STRETCH_END_S + CROWD_LEAD_S
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        keys = folder / "keys.json"
        keys.write_text(key_set([key]))
        keys.chmod(0o600)
        data = stack.enter_context(Data())
        websocket_port = free_port()
        flags = [
            *("--ws-port", str(websocket_port), "--rooms", "open", "--room-events", "all"),
            *("--max-listed-members", str(MAX_LISTED_MEMBERS)),
            *("--redis", data.url, "--admin", "127.0.0.1:0", "--workers", str(given.workers)),
            *("--token-keys", str(keys), "--stream-maxlen", str(STREAM_MAXLEN)),
            *(
                "--idle-timeout",
                str(IDLE_TIMEOUT_S),
                "--disconnect-grace",
                str(GRACE_S),
                "--tick",
                str(TICK_S),
            ),
        ]
        program = ("-m", "benchmarks.soak.growth", str(folder)) if given.name_growth else PRESENCE
        server = stack.enter_context(PresenceServer(*flags, program=program, forward_errors=True))
        judge = stack.enter_context(contextlib.closing(EventJudge(data.url, IDLE_TIMEOUT_S)))

        websocket_address = (server.address[0], websocket_port)
        websocket_users = max(1, round(given.users * WEBSOCKET_SHARE))
        visitors, over_websocket = (
            stack.enter_context(contextlib.closing(each))
            for each in (
                Visitors(server.address, key, given.users),
                Visitors(websocket_address, key, websocket_users, over_websocket=True),
            )
        )
        for each in (visitors, over_websocket):
            each.wait_until_ready()  # all others end sooner or later
        options = [
            *("--token-key-file", str(keys), "--tick", str(TICK_S), "--disconnect-grace", str(GRACE_S)),
            *("--slack", str(SLACK_S), "--action-every", str(ACTION_EVERY_S)),
            *("--connections", str(min(CROWD_USERS, given.crowd))),
            *("--login-p99-max", "0", "--answer-p99-max", "0", "--websocket-port", str(websocket_port)),
        ]
        users = max(1, given.crowd // CROWD_USERS)
        crowd = stack.enter_context(
            LocustRun(server.host, data.url, *options, users=users, seconds=seconds, locustfile=CROWD)
        )
        crowd_ends_at = time.monotonic() + seconds
        if not wait_for(lambda: bool(judge.crowd), CROWD_START_S):
            raise SystemExit("no device of the crowd has come online: nothing can be judged")
        subscribers = stack.enter_context(contextlib.closing(Subscribers(data.url)))
        rosters = stack.enter_context(contextlib.closing(RosterKeeper(data.url, lambda: judge.crowd)))
        soak = Soak(given, data, server, judge, crowd, crowd_ends_at, folder)
        soak.play(visitors, over_websocket)
        try:
            crowd_report = crowd.report()
        except LocustFailed as error:
            raise SystemExit(f"the crowd cannot be judged: {error}") from error
        wait_for(lambda: judge.visits["offline"] >= soak.granted, LAST_EVENTS_S)
        broken = soak.finish(rosters)
        failures = server.failures()
    report.rows |= {
        "visits": f"{soak.visits:,}; {soak.granted:,} granted, {soak.finished:,} of these logged out",
        "events": ", ".join(f"{count:,} {name}" for name, count in judge.counts.most_common()),
        "events of visitors": f"{judge.visits['online']:,} online, {judge.visits['offline']:,} offline",
        "restarts of Redis": str(soak.restarts),
        "changes of rooms": f"{soak.room_changes:,.0f}",
        "changes of rosters": f"{rosters.changes:,}",
        "consumer groups": f"{subscribers.groups} with {subscribers.events:,} events",
        "crowd": ", ".join(
            f"{row.requests:,} x {name}"
            for (kind, name), row in crowd_report.rows.items()
            if kind == "device"
        ),
    }
    report.metrics |= {"visits": soak.visits, "transitions": judge.counts["online"] + judge.counts["offline"]}
    wanted = {"online": soak.granted, "offline": soak.granted}
    report.broken += [
        *(
            f"{judge.visits[name] - count:+,} {name} events of visitors"
            for name, count in wanted.items()
            if judge.visits[name] != count
        ),
        *([f"{unfinished:,} visits did not end"] if (unfinished := soak.granted - soak.finished) else []),
        *judge.broken,
        *judge.found.broken,
        *soak.rooms.broken,
        *unseen_kinds(crowd_report),
        *broken,
        *(
            f"crowd: {reason}"
            for reason in crowd_report.reasons or ["exit status"] * bool(crowd_report.status)
        ),
        *failed_checks(
            (subscribers.error, f"the subscribers died: {subscribers.error}"),
            (not subscribers.events, "no subscriber was given an event"),
            (not soak.visits_over_websocket, "no visitor was granted a login over WebSocket"),
            (rosters.error, f"the backend of rosters died: {rosters.error}"),
            (not rosters.changes, "no roster was changed"),
            (
                soak.failed_looks > MAX_FAILED_LOOKS * soak.looks,
                f"{soak.failed_looks} of {soak.looks} looks at the figures failed",
            ),
        ),
        *(f"server: {failure}" for failure in failures),
    ]
    return soak


def unseen_kinds(report: LocustReport) -> list[str]:
    """Return the kinds of clients that have done nothing, or were sent nothing."""
    rows = {name: row for (kind, name), row in report.rows.items() if kind == "device"}
    none = LocustRow()
    return [
        f"crowd: no {name}" for name in kinds.ROWS if (row := rows.get(name, none)).requests == row.failures
    ]


def judge_samples(samples: Samples, given: argparse.Namespace, report: ScenarioReport) -> str:
    """Judge all figures; return a table of them. One without enough samples is a broken promise, too."""
    warm_up_s, rows = given.warm_up * samples.end_s, []
    broken: list[str] = []
    too_few: list[str] = []
    latencies = [f"{each} p99, ms" for each in LATENCIES]
    growing = [name for name in samples.times if name.partition(" p")[0] not in LATENCIES]
    for name in dict.fromkeys([*PROCESS_FIGURES, *GAUGES, *growing]):
        moments, values = samples.after(name, warm_up_s)
        if len(moments) < BLOCKS:
            too_few.append(name)
            continue
        found = trend(moments, values)
        rows.append([name, f"{found.mean:,.2f}", f"{found.growth:+,.2f} ± {found.error:,.2f}"])
        if found.grows:
            broken.append(f"{name} grows: {found}")
    for name in latencies:
        _, values = samples.after(name, warm_up_s)
        if len(values) < BLOCKS:
            too_few.append(name)
            continue
        quarter = len(values) // 4
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        report.rows[name] = f"{first:,.1f} in the first quarter, {last:,.1f} in the last"
        if last > max(SLOWER * first, first + LEAST_SLOWER_MS):
            broken.append(f"{name}: {report.rows[name]}")
    report.rows |= dict.fromkeys(too_few, TOO_FEW)
    broken += [f"{name}: {TOO_FEW}" for name in too_few]
    broken += ["no table of the server was seen"] * (not any(map(is_table, growing)))
    report.broken += [] if given.events_only else broken
    report.broken += [f"{name} was never above 0" for name in USED if not any(samples.values.get(name, ()))]
    return markdown("after the warm-up | mean | growth over the rest, ± 95 %", rows)


def draw(samples: Samples, warm_up_s: float, path: Path) -> None:
    """Draw memory, descriptors and threads, tables, and latencies over the time."""
    panels = {
        "memory, MB": (MEMORY, DATA),
        "descriptors, threads": (DESCRIPTORS, THREADS),
        "sessions, connections, members of rooms": (
            *("presence_sessions", "presence_connections", "presence_room_members"),
        ),
        "p99, ms": tuple(f"{name} p99, ms" for name in LATENCIES),
    }
    drawing, all_axes = plots.figure(2, 2, 9, 5, "A soak: figures over the minutes")
    for axes, (title, names) in zip(all_axes, panels.items(), strict=True):
        for name in names:
            minutes = [moment / 60 for moment in samples.times.get(name, [])]
            axes.plot(minutes, samples.values.get(name, []), linewidth=0.8, label=name)
        axes.axvline(warm_up_s / 60, color=plots.PEER_COLOUR, linewidth=0.8)
        axes.set_title(title, color=plots.INK, fontsize=9, loc="left")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, frameon=False)
    plots.save(drawing, path)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--visits", type=from_1, default=10_000_000)
    add("--rate", type=above_0, default=2200.0, help="visits per second")
    add("--users", type=from_1, default=50_000, help="visitors, who come in turn")
    add("--crowd", type=from_1, default=500, help="devices of the crowd; beyond 500 a multiple of it")
    add("--workers", type=from_1, default=1, help="of the server")
    add("--restart-every", type=above_0, default=600.0, help="seconds between two restarts of Redis")
    add("--warm-up", type=share, default=0.15, help="share of the time whose samples are not judged")
    add("--name-growth", action="store_true", help="count the server's objects by type, twice")
    add("--events-only", action="store_true", help="do not judge whether a figure grows")
    add("--out", type=Path, help="directory for soak.md, soak.json and soak.png")
    given = parser.parse_args(words)
    if given.users < given.rate * 2:
        parser.error("--users must be twice --rate: or visitors are due again before they have left")
    return given


def main() -> int:
    given = parse()
    usage.require_linux()
    raise_file_limit()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    report = ScenarioReport(f"{given.visits:,} visits, {given.rate:g}/s")
    started = time.monotonic()
    soak = run(given, report)
    samples = soak.samples
    report.rows["took"] = f"{time.monotonic() - started:,.0f} s"
    figures = judge_samples(samples, given, report)
    report.rows |= usage.machine_facts()
    if given.name_growth and len(soak.objects) < 2:
        report.broken.append("the server has not said what its objects take")
    text = f"{report.table()}\n\n{figures}"
    if len(soak.objects) == 2:
        text += f"\n\n{growth.table(*soak.objects)}"
    print(text)
    if given.out:
        (given.out / "soak.md").write_text(text + "\n")
        (given.out / "soak.json").write_text(report.as_json() + "\n")
        (given.out / "samples.json").write_text(samples.as_json() + "\n")
        draw(samples, given.warm_up * samples.end_s, given.out / "soak.png")
    return print_verdict("benchmarks.soak", report.broken[:20])


if __name__ == "__main__":
    exit_on_sigterm()
    sys.exit(main())
