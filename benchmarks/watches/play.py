"""The phases of a run: log in, watch, be quiet, change; each measured, and deliveries and views judged."""

import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any

from benchmarks.loop_processes import LoopProcesses, shares_of, sources_of
from benchmarks.watches.crowd import STATUSES, Crowd, CrowdStatus, Views
from benchmarks.watches.graph import FriendGraph, distinct_friends
from benchmarks.watches.subjects import PresenceSubject, Subject
from benchmarks.watches.truth import JudgedChanges, compare_views, judge_deliveries
from loadtest import usage
from loadtest.outcome import BrokenPromises, percentile, print_progress

CONNECTIONS_PER_PROCESS = 9_000
# One in so many clients watches, then more: the first have a worker touch what it shares with the supervisor,
# and what follows gives two equations for two unknowns.
WATCHERS = (200, 10, 1)
POLL_INTERVAL_S = 0.25
PROGRESS_S = 5.0
MARGIN_S = 240.0  # beyond the time that a rate takes
SETTLE_TIMEOUT_S = 20.0  # until all views are equal, after the last change
MB = 1_000_000


@dataclass
class Consumption:
    """What the processes and Redis have used up to a moment."""

    at: float
    cpu_s: float
    redis_cpu_s: float
    memory: int  # bytes of the processes that belong to no file
    redis_memory: int
    redis_calls: int


@dataclass
class WatchFigures:
    """The results of one server."""

    name: str
    clients: int
    watches: int
    workers: int = 0
    distinct: int = 0  # watched users, summed over the workers
    bytes_per_client: float = 0.0
    bytes_per_distinct: float = math.nan
    bytes_per_watch: float = 0.0  # that of a further watcher if the one above is known
    watching_mb: float = 0.0  # memory of all workers for all watches
    redis_watching_bytes: float = 0.0  # of a worker
    storm_s: float = 0.0
    storm_p99_s: float = 0.0
    storm_cpu_us: float = 0.0  # of a watch
    storm_redis_us: float = 0.0
    storm_redis_calls: int = 0
    answer_bytes: float = 0.0  # of a state in an answer
    changes: int = 0
    pushes: int = 0
    cpu_us: float = 0.0  # of a delivered change
    redis_us: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)  # by the cause
    push_bytes: float = 0.0  # of a change
    changes_per_packet: float = 0.0
    quiet_cpu: float = 0.0  # of a core
    expected: int = 0
    missing: int = 0
    unmatched: int = 0
    views: int = 0  # compared
    late_max_ms: float = 0.0  # of the load
    broken: list[str] = field(default_factory=list)


class WatchesRun:
    """Clients on a running server, phase by phase.

    Args:
        graph: of all clients.
        seed: of what users do.
        rest_s: until what a phase leaves behind is done.
    """

    def __init__(self, subject: Subject, graph: FriendGraph, seed: int, rest_s: float) -> None:
        self.subject, self.graph, self._rest_s = subject, graph, rest_s
        shares = shares_of(len(graph), math.ceil(len(graph) / CONNECTIONS_PER_PROCESS))
        sources = sources_of(subject.addresses[0][0], [*map(len, shares)])
        parts = [graph.part(share.start, share.stop) for share in shares]
        self.crowd = LoopProcesses(
            Crowd,
            [
                (subject.addresses, subject.make_client, part, sources[number], seed + number)
                for number, part in enumerate(parts)
            ],
        )
        self._sizes = [len(part) for part in parts]
        self.figures = WatchFigures(subject.name, len(graph), len(graph.friends))
        self.promises = BrokenPromises()
        self._progress_at = 0.0
        self._least_ids = array("q", [0]) * len(graph)  # see `count_behind`

    def close(self) -> None:
        self.crowd.close()

    def status(self) -> CrowdStatus:
        found: list[CrowdStatus] = self.crowd.call_all("report_status")
        return reduce(add, found)

    def begin_phase(self) -> Consumption:
        """Count and log anew, beyond what the truth has to know of what happened."""
        self.subject.new_changes(self.crowd.call_all("take_log"))
        self.crowd.call_all("begin_phase")
        return self.consumption()

    def consumption(self) -> Consumption:
        pids, redis = self.subject.pids(), self.subject.redis
        return Consumption(
            time.monotonic(),
            sum(usage.cpu_seconds_by_pid(pids).values()),
            usage.redis_cpu_seconds(redis) if redis else 0.0,
            usage.memory(*pids).anonymous,
            redis.info("memory")["used_memory"] if redis else 0,
            sum(usage.redis_calls(redis).values()) if redis else 0,
        )

    def rest(self) -> None:
        self.wait("at rest", self._rest_s)

    # Phases

    def log_in(self, per_second: float, keepalive_s: float) -> None:
        before = self.begin_phase()
        self.crowd.call_all("log_in_all", per_second=per_second / self.crowd.size, keepalive_s=keepalive_s)
        self.must(
            "logging in",
            MARGIN_S + len(self.graph) / per_second,
            lambda status: status.logged_in >= len(self.graph),
        )
        self.rest()
        used = self.consumption().memory - before.memory
        self.figures.bytes_per_client = used / len(self.graph)

    def watch(self, at_once: int) -> None:
        """Let some watch, then all; what a distinct user and a further watch take follows from the growth."""
        figures, before = self.figures, self.begin_phase()
        points = []
        for every in WATCHERS:
            begun = self.begin_phase()
            wanted = sum(math.ceil(size / every) for size in self._sizes)
            self.crowd.call_all("watch_all", at_once=math.ceil(at_once / self.crowd.size), every=every)
            self.must("watching", MARGIN_S, partial(_has_watching, wanted))
            seconds = time.monotonic() - begun.at
            self.rest()
            after, views = self.consumption(), self.crowd.call_all("views")
            points.append((*self._watched(views), after.memory - before.memory))
        status = self.status()
        distinct, watches, all_bytes = points[-1]
        figures.distinct, figures.watching_mb = distinct, all_bytes / MB
        figures.workers = len({node for some in views for node in some.nodes})
        figures.redis_watching_bytes = (after.redis_memory - before.redis_memory) / figures.workers
        growth = [[later - former for former, later in zip(*pair, strict=True)] for pair in pairwise(points)]
        figures.bytes_per_distinct, figures.bytes_per_watch = _two_unknowns(*growth)
        if not any(node for some in views for node in some.nodes):  # one process: nothing is distinct
            figures.bytes_per_distinct, figures.bytes_per_watch = math.nan, all_bytes / watches
        figures.storm_s, figures.storm_p99_s = seconds, percentile(status.watch_s, 0.99)
        figures.storm_cpu_us = (after.cpu_s - begun.cpu_s) / max(1, status.watches) * 1e6
        figures.storm_redis_us = (after.redis_cpu_s - begun.redis_cpu_s) / max(1, status.watches) * 1e6
        figures.storm_redis_calls = after.redis_calls - begun.redis_calls
        figures.answer_bytes = status.answer_bytes / max(1, status.answers)
        self._note_failures(status)

    def change(self, per_second: float, seconds: float) -> None:
        """Be quiet, then let users change, for equally long; judge each delivery and each view."""
        figures = self.figures
        before = self.begin_phase()
        self.wait("quiet", seconds)
        quiet = self.consumption()
        self.begin_phase()
        begun = self.consumption()
        self.start_changes(per_second)
        self.wait("changing", seconds)
        self.stop_changes()
        self.rest()
        after, status = self.consumption(), self.status()
        share = (after.at - begun.at) / (quiet.at - before.at)
        found = self.judge(begun.at)
        figures.changes, figures.pushes = found.changes.total(), found.pushes
        figures.quiet_cpu = (quiet.cpu_s - before.cpu_s) / (quiet.at - before.at)
        cpu_s = after.cpu_s - begun.cpu_s - (quiet.cpu_s - before.cpu_s) * share
        redis_s = after.redis_cpu_s - begun.redis_cpu_s - (quiet.redis_cpu_s - before.redis_cpu_s) * share
        figures.cpu_us, figures.redis_us = (each / max(1, found.pushes) * 1e6 for each in (cpu_s, redis_s))
        every = [each for some in found.latencies_s.values() for each in some]
        figures.p50_ms, figures.p99_ms = (percentile(every, each) * 1000 for each in (0.5, 0.99))
        figures.latencies = {
            reason: {
                "count": len(some),
                "p50_ms": percentile(some, 0.5) * 1000,
                "p99_ms": percentile(some, 0.99) * 1000,
            }
            for reason, some in sorted(found.latencies_s.items())
        }
        figures.push_bytes = status.push_bytes / max(1, status.pushes)
        figures.changes_per_packet = status.pushes / max(1, status.push_packets)
        figures.expected, figures.missing, figures.unmatched = found.expected, found.missing, found.unmatched
        figures.late_max_ms = status.late_max_s * 1000
        figures.views = self.check_views()
        if found.missing:
            self.promises.note("changes not delivered one by one", f"{found.missing:,} of {found.expected:,}")
        if found.unmatched:
            self.promises.note("events that do not match what clients did", f"{found.unmatched:,}")
        self._note_failures(status)

    def start_changes(self, per_second: float) -> None:
        self.crowd.call_all("start_changes", per_second=per_second / self.crowd.size)

    def stop_changes(self) -> None:
        self.crowd.call_all("stop_changes")

    def count_behind(self, moment: float) -> tuple[int, int]:
        """Return how many clients do not watch that are to, and how many views lack an event until then."""
        assert isinstance(self.subject, PresenceSubject)
        self.subject.add_least_ids(self._least_ids, moment)
        absent, behind = zip(*self.crowd.call_all("count_behind", ids=self._least_ids), strict=True)
        return sum(absent), sum(behind)

    def judge(self, since: float) -> JudgedChanges:
        """Judge the deliveries of the phase that began then."""
        logs = self.crowd.call_all("take_log")
        steady = b"".join(self.crowd.call_all("steady_since", moment=since))
        return judge_deliveries(self.graph, self.subject.new_changes(logs), logs, steady)

    def check_views(self) -> int:
        """Compare all views with the truth, once they have had time to be equal; return how many."""
        give_up = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            found, views = BrokenPromises(), self.crowd.call_all("views")
            truth = self.subject.states(views)
            compared = compare_views(views, truth, found)
            for some in views:
                for user, status in enumerate(some.own_statuses, some.graph.first):
                    if STATUSES[status] != truth[user].status:
                        found.note("users whose state is not what they did", f"{user}: {truth[user]}")
            if not found.counts or time.monotonic() > give_up:
                break
            self.rest()
        self.promises.counts.update(found.counts)
        self.promises.examples += found.examples
        return compared

    def finish(self) -> WatchFigures:
        """Return the figures, with everything that was broken."""
        broken = self.status().broken
        self.promises.counts.update({what: count for what, count in broken.items() if count})
        self.figures.broken = [*self.promises.broken, *self.subject.failures()]
        return self.figures

    # Parts

    def _watched(self, views: Sequence[Views]) -> tuple[int, int]:
        """Return the watched users, summed over the workers, and the watches."""
        nodes: dict[str, int] = {}
        groups = [
            nodes.setdefault(node, len(nodes)) if watching else -1
            for some in views
            for node, watching in zip(some.nodes, some.is_watching, strict=True)
        ]
        distinct = distinct_friends(self.graph, groups)
        watches = sum(len(self.graph.edges(user)) for user, group in enumerate(groups) if group >= 0)
        return sum(count for group, count in distinct.items() if group >= 0), watches

    def _note_failures(self, status: CrowdStatus) -> None:
        for reason, count in status.refused.items():
            self.promises.note(f"requests refused: {reason}", count)
        for reason, count in status.lost.items():
            self.promises.note(f"connections lost: {reason}", count)

    def must(self, what: str, seconds: float, done: Callable[[CrowdStatus], bool]) -> None:
        """Wait until a condition holds; raises SystemExit if it does not in time."""
        if not self.wait(what, seconds, done):
            raise SystemExit(
                f"{self.subject.name}: {what} is not done after {seconds:.0f} s: {self.status()}"
            )

    def wait(self, what: str, seconds: float, done: Callable[[CrowdStatus], Any] | None = None) -> bool:
        """Wait for some seconds or until a condition holds; return whether it does."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if done is not None or now >= self._progress_at + PROGRESS_S:
                status = self.status()
                if now >= self._progress_at + PROGRESS_S:
                    self._progress_at = now
                    print_progress(
                        f"{self.subject.name}, {what}: {status.logged_in:,} logged in, "
                        f"{status.watching:,} watching, "
                        f"{status.episodes:,} engaged, {status.pushes:,} changes received, "
                        f"late {status.late_max_s * 1000:.0f} ms {status.refused + status.lost or ''}"
                    )
                if done is not None and done(status):
                    return True
            if now >= until:
                return done is None
            time.sleep(min(POLL_INTERVAL_S, max(0.0, until - now)))


def _two_unknowns(one: Sequence[int], other: Sequence[int]) -> tuple[float, float]:
    """Return the bytes of a distinct user and of a further watch, given users, watches and bytes, twice."""
    (users, watches, used), (more_users, more_watches, more_used) = one, other
    further, more_further = watches - users, more_watches - more_users
    if not (determinant := users * more_further - more_users * further):
        return math.nan, math.nan
    return (
        (used * more_further - more_used * further) / determinant,
        (users * more_used - more_users * used) / determinant,
    )


def _has_watching(wanted: int, status: CrowdStatus) -> bool:
    return status.watching >= wanted
