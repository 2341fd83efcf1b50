"""The phases of a run: ramp, two holds, mass silence, a last keepalive of all; each measured and judged."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.scale.fleet import Fleet, FleetStatus
from benchmarks.scale.verdict import Ends, ScaleDeadlines, judge
from loadtest import usage
from loadtest.outcome import percentile, print_progress, spread, spread_ms
from loadtest.scenario_report import ScenarioReport
from loadtest.stream_events import StreamEvent, WallClock, stream_event
from presence.store.error_classes import passes
from presence.store.redis_client import RedisError
from presence.subscriber.events import Gap, Item
from presence.subscriber.follower import Follower
from presence.subscriber.redis_connections import RedisConnections

RETRY_S = 0.2
NICE = 5
GAP = "gap in the stream"
END_TIMEOUT_S = 10.0  # above the time that a read may wait
POLL_INTERVAL_S = 0.25  # at least; each looks at every client
POLLED_PER_S = 500_000  # connections
PROGRESS_S = 5.0  # between two lines
RAMP_MARGIN_S = 120.0  # beyond the time that the rate of logins takes
EVENTS_MARGIN_S = 15.0  # how long after the promised time events are still waited for
HANG_UP_TIMEOUT_S = 30.0
QUIET_S = 1.0  # and so long after the last: a doubled event would be close behind
LAST_KEEPALIVE_MARGIN_S = 20.0  # for generators that are late with it
MAX_SPAN_S = 5.0  # promised between the first and the last event after it
LATE_S = 0.25  # at p99; a generator that is later than this is at its limits
MB = 1_000_000


class Reader:
    """Follows the streams from their present end, and keeps what it reads.

    Attributes:
        clock: sampled at every read.
        broken: why events may be missing; empty if none are.
        offline_count: of offline events.
    """

    def __init__(self, redis_url: str, prefix: str = "presence") -> None:
        self.events: list[StreamEvent] = []
        self.broken: list[str] = []
        self.offline_count = 0
        self.clock = WallClock()
        self._connections = RedisConnections(redis_url)
        self._follower = Follower(self._connections, prefix)
        with self._connections.borrow() as client:
            self._follower.add_shards(client)
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._finished.set()
        self._thread.join(END_TIMEOUT_S)
        self._follower.close()

    def _run(self) -> None:
        # The cores are the server's first: other subscribers have machines of their own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._finished.is_set():
            try:
                self._follower.fetch()
                self._add_all()
            except (RedisError, ValueError) as error:
                if passes(error):
                    time.sleep(RETRY_S)
                    continue
                self.broken.append(f"the stream cannot be read: {error}")
                return
            except Exception as error:  # a thread that ends unheard would leave the rest unjudged
                self.broken.append(f"the reader of events died: {type(error).__name__}: {error}")
                raise

    def _add_all(self) -> None:
        self.clock.sample()
        while (item := self._follower.next()) is not None:
            self._add(item)

    def _add(self, item: Item) -> None:
        if isinstance(item, Gap):
            self.broken.append(f"{GAP}: {item.reason} after {item.id}")
            return
        event = stream_event(item, self.clock)._replace(fields={})  # of a million events they take gigabytes
        self.events.append(event)
        self.offline_count += event.type == "offline"


class ScaleRun:
    """The phases, one method each, on a running server.

    Args:
        name: of the server, in rows.
        report: receives the results.
        pids: returns the processes to measure.
        reader: of the server's events; None without events.
    """

    def __init__(
        self,
        name: str,
        report: ScenarioReport,
        fleet: Fleet,
        pids: Callable[[], Sequence[int]],
        reader: Reader | None = None,
    ) -> None:
        self._name, self._report, self._fleet, self._pids, self._reader = name, report, fleet, pids, reader
        self._progress_at = 0.0
        self._first_event = self._offline_before = 0  # events and offline events before it

    def ramp(self, per_second: float, beat_s: float, connections: int, times: int = 1) -> None:
        """Let all log in and send keepalives; wait until each has sent one."""
        self._first_event, self._offline_before = (
            len(self._reader.events) if self._reader else 0,
            self._offline_count,
        )
        self._fleet.call_all("begin_phase")
        self._fleet.call_all("start_keepalives", every_s=beat_s)
        started = time.monotonic()
        self._fleet.call_all("log_in_all", per_second=per_second / self._fleet.size)
        self._wait("logging in", connections / per_second + RAMP_MARGIN_S, lambda status: not status.arriving)
        seconds, load = time.monotonic() - started, self._fleet.status(in_full=True)
        self._wait("first beats", beat_s)
        if self._reader:
            self._report.rows[f"all log in, time {times}"] = (
                f"{load.online:,} in {seconds:.1f} s; login {spread_ms(load.login_s)}; "
                f"refused {dict(load.refused) or 0}, failed {dict(load.failed) or 0}"
            )
        self._report.broken += ramp_failures(self._name, load, connections)

    def hold(self, beat_s: float, seconds: float) -> None:
        """Let all send keepalives at that interval, and measure."""
        pids, name = self._pids(), f"{self._name}, a beat each {beat_s:g} s"
        self._fleet.call_all("start_keepalives", every_s=beat_s)
        self._fleet.call_all("begin_phase")
        before, lost, offline = (
            usage.cpu_seconds_by_pid(pids),
            self._fleet.status().lost.total(),
            self._offline_count,
        )
        started = time.monotonic()
        self._wait(name, seconds / 2)
        half = usage.memory(*pids)
        self._wait(name, started + seconds - time.monotonic())
        elapsed, after = time.monotonic() - started, usage.cpu_seconds_by_pid(pids)
        load, end = self._fleet.status(in_full=True), usage.memory(*pids)
        lost, offline = load.lost.total() - lost, self._offline_count - offline
        cpu_s = sum(max(0.0, after[pid] - before[pid]) for pid in pids)
        rss, pss = max(half.rss, end.rss), max(half.pss, end.pss)
        cpu_us = cpu_s / max(1, load.keepalives) * 1e6
        found = {"beat_s": beat_s, "seconds": elapsed, "beats": load.keepalives, "cpu_us": cpu_us}
        found |= {"rss": rss, "pss": pss, "lost": lost, "offline": offline, "blocked": load.blocked}
        self._report.rows[name] = (
            f"{load.keepalives / elapsed:,.0f}/s for {elapsed:.0f} s: {cpu_us:.1f} µs of CPU each, "
            f"{cpu_s / elapsed:.1%} of a core; false offline {offline}, lost {lost}, "
            f"not taken by the kernel {load.blocked}; "
            f"PSS {pss / MB:.0f} MB, RSS {rss / MB:.0f} MB; generators {load.cpu_s / elapsed:.0%} of a core, "
            f"late {spread_ms(load.late_s)}"
        )
        if percentile(load.late_s, 0.99) > LATE_S:
            self._report.rows[f"{name}: note"] = "the generators were late: their figures say little"
        self._report.metrics.setdefault(self._name, []).append(found)
        self._report.broken += hold_failures(name, lost, offline, load.blocked)

    def silence(self, promise: ScaleDeadlines, share: float = 1.0) -> None:
        """Let all, or a share, fall silent, wait for the offline events, and judge the period."""
        self._fleet.call_all("fall_silent", share=share)
        self._judge_silence("silence", promise)

    def last_keepalive(self, within_s: float, promise: ScaleDeadlines) -> None:
        """Let all send one more keepalive within that time, then as `silence`.

        What is promised here is the time from the first event to the last, so `MAX_SPAN_S` is the slack.
        """
        self._fleet.call_all("fall_silent", last_beat_s=within_s)
        self._wait("one last beat", within_s + LAST_KEEPALIVE_MARGIN_S, lambda status: not status.beating)
        self._judge_silence("silence after a last beat", replace(promise, slack=MAX_SPAN_S), MAX_SPAN_S)

    def _judge_silence(self, name: str, promise: ScaleDeadlines, span_max_s: float | None = None) -> None:
        assert self._reader is not None
        reader = self._reader
        truths = self._fleet.last_packets()
        others = self._fleet.connections - len(truths)
        due, expected = promise.delay_max + EVENTS_MARGIN_S, self._offline_before + len(truths)
        self._wait(name, due, lambda _: reader.offline_count >= expected)
        self._fleet.call_all("resume_reading")
        self._wait(f"{name}, hanging up", HANG_UP_TIMEOUT_S, lambda status: status.online <= others)
        self._wait(name, QUIET_S)
        silent = {truth.uid for truth in truths}
        events = (e for e in reader.events[self._first_event :] if e.uid in silent or e.type != "online")
        ends = judge(truths, events, promise)
        for broken in reader.broken:
            ends.note(broken, name)
        delays = {"decided": ends.decided_s, "in the stream": ends.written_s, "read": ends.read_s}
        least = {what: min(found, default=0.0) for what, found in delays.items()}
        self._report.rows[name] = (
            f"{ends.offline:,} of {ends.clients:,} offline events are right; after the last packet "
            + "; ".join(f"{what} min {least[what]:.2f} {spread(found)}" for what, found in delays.items())
            + f"; first to last {ends.first_to_last_s:.2f} s"
        )
        self._report.metrics[name] = {
            "clients": ends.clients,
            "offline": ends.offline,
            "first_to_last_s": ends.first_to_last_s,
            **{f"{what}, s": [least[what], *_percentiles(found)] for what, found in delays.items()},
        }
        self._report.broken += end_failures(name, ends, span_max_s)
        for example in ends.examples:
            print_progress(example)

    @property
    def _offline_count(self) -> int:
        return self._reader.offline_count if self._reader else 0

    def _wait(self, name: str, seconds: float, done: Callable[[FleetStatus], bool] | None = None) -> None:
        """Wait for some seconds or until a condition holds, printing the progress."""
        until = time.monotonic() + seconds
        while True:
            status, now = self._fleet.status(), time.monotonic()
            if now - self._progress_at >= PROGRESS_S:
                self._progress_at = now
                print_progress(
                    f"{name}: {status.online:,} online, {status.keepalives:,} beats, latest "
                    f"{status.late_max_s * 1000:.0f} ms, {self._offline_count:,} offline events, "
                    f"{status.lost.total():,} ended {({**status.refused, **status.failed}) or ''}"
                )
            if now >= until or (done is not None and done(status)):
                return
            pause_s = max(POLL_INTERVAL_S, self._fleet.connections / POLLED_PER_S)
            time.sleep(min(pause_s, until - now))


def _percentiles(seconds: Sequence[float]) -> list[float]:
    return [percentile(seconds, share) for share in (0.5, 0.99, 1.0)]


def ramp_failures(name: str, load: FleetStatus, connections: int) -> list[str]:
    if load.online >= connections:
        return []
    return [f"{name}: only {load.online:,} of {connections:,} logged in"]


def hold_failures(name: str, lost: int, offline: int, blocked: int) -> list[str]:
    found = {"connections lost": lost, "offline events": offline, "keepalives not taken": blocked}
    return [f"{name}: {count:,} {what}" for what, count in found.items() if count]


def end_failures(name: str, ends: Ends, span_max_s: float | None) -> list[str]:
    """Return what was broken in a silence; `span_max_s`: allowed between the first and last event."""
    found = [f"{name}: {count:,} x {what}" for what, count in ends.counts.items()]
    if span_max_s is not None and ends.first_to_last_s > span_max_s:
        found.append(f"{name}: {ends.first_to_last_s:.2f} s from first to last event")
    return found
