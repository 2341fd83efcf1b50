"""What is played: ramp, two holds, a mass silence, a last beat of all; each is measured and judged."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest import usage
from loadtest.outcome import say
from loadtest.scale.fleet import Fleet, Status
from loadtest.scale.reader import Reader
from loadtest.scale.verdict import Ends, Promise, judge

POLL_S = 0.25
PROGRESS_S = 5.0  # between two lines
RAMP_TIMEOUT_S = 120.0
EVENTS_MARGIN_S = 15.0  # how long after the promised time events are still waited for
HANG_UP_TIMEOUT_S = 30.0
QUIET_S = 1.0  # and so long after the last: a doubled event would be close behind
LAST_BEAT_MARGIN_S = 20.0  # for generators that are late with it
SPAN_MAX_S = 5.0  # promised between the first and the last event after it


@dataclass
class Ramp:
    """All logged in: in how many seconds, and how the generators stood then."""

    seconds: float
    load: Status


@dataclass
class Hold:
    """A time of nothing but beats.

    Attributes:
        beat_s, seconds: the interval, and how long it was held.
        cpu_s: processor time of all processes of the server.
        memory: of all of them; the larger of the samples in the middle and at the end.
        lost, offline: connections that ended, and offline events.
        load: how the generators stood in the end.
    """

    beat_s: float
    seconds: float
    cpu_s: float
    memory: usage.Memory
    lost: int
    offline: int
    load: Status

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time a keepalive."""
        return self.cpu_s / max(1, self.load.beats) * 1e6


class Play:
    """The phases, one method each, on a server that runs.

    Args:
        fleet: the generators.
        pids: tells the processes that are measured.
        reader: reads the server's events; None where there are none.
    """

    def __init__(self, fleet: Fleet, pids: Callable[[], Sequence[int]], reader: Reader | None = None) -> None:
        self._fleet = fleet
        self._pids = pids
        self._reader = reader
        self._said = 0.0
        self._period = self._ended = 0  # events and offline events before it

    def ramp(self, per_second: float, beat_s: float) -> Ramp:
        """Let all log in, and beat from then on; wait until they are, and have beaten once."""
        self._period, self._ended = len(self._reader.events) if self._reader else 0, self._offline
        self._fleet.do("mark")
        self._fleet.do("beat", every_s=beat_s)
        begun = time.monotonic()
        self._fleet.do("come", per_second=per_second / self._fleet.size)
        self._wait("logging in", RAMP_TIMEOUT_S, lambda status: not status.arriving)
        found = Ramp(time.monotonic() - begun, self._fleet.status(in_full=True))
        self._wait("first beats", beat_s)
        return found

    def hold(self, beat_s: float, seconds: float) -> Hold:
        """Let all beat at that interval, and measure."""
        pids, name = self._pids(), f"a beat each {beat_s:g} s"
        self._fleet.do("beat", every_s=beat_s)
        self._fleet.do("mark")
        before, lost, offline = usage.cpu_s(pids), self._fleet.status().lost.total(), self._offline
        begun = time.monotonic()
        self._wait(name, seconds / 2)
        half = usage.memory(*pids)
        self._wait(name, begun + seconds - time.monotonic())
        elapsed, after = time.monotonic() - begun, usage.cpu_s(pids)
        load, end = self._fleet.status(in_full=True), usage.memory(*pids)
        return Hold(
            beat_s,
            elapsed,
            sum(max(0.0, after[pid] - before[pid]) for pid in pids),
            usage.Memory(max(half.rss, end.rss), max(half.pss, end.pss)),
            load.lost.total() - lost,
            self._offline - offline,
            load,
        )

    def silence(self, promise: Promise) -> Ends:
        """Let all fall silent, wait for their ends, and judge the period."""
        self._fleet.do("fall_silent")
        return self._end("silence", promise)

    def last_beat(self, within_s: float, promise: Promise) -> Ends:
        """Let all send one more beat within that time, then as `silence`.

        Here the time from the first event to the last is what is promised, so `SPAN_MAX_S` is the slack.
        """
        self._fleet.do("fall_silent", last_beat_s=within_s)
        self._wait("one last beat", within_s + LAST_BEAT_MARGIN_S, lambda status: not status.beating)
        return self._end("silence after it", replace(promise, slack=SPAN_MAX_S))

    def _end(self, name: str, promise: Promise) -> Ends:
        assert self._reader is not None
        reader = self._reader
        truths = self._fleet.truths()
        due, expected = promise.delay_max + EVENTS_MARGIN_S, self._ended + len(truths)
        self._wait(name, due, lambda _: reader.offline >= expected)
        self._fleet.do("listen")
        self._wait(f"{name}, hanging up", HANG_UP_TIMEOUT_S, lambda status: not status.online)
        self._wait(name, QUIET_S)
        verdict = judge(truths, reader.events[self._period :], promise)
        for broken in reader.broken:
            verdict.note(broken, name)
        return verdict

    @property
    def _offline(self) -> int:
        return self._reader.offline if self._reader else 0

    def _wait(self, name: str, seconds: float, done: Callable[[Status], bool] | None = None) -> None:
        """Wait, for that time or until something is so; tell how it stands meanwhile."""
        until = time.monotonic() + seconds
        while True:
            status, now = self._fleet.status(), time.monotonic()
            if now - self._said >= PROGRESS_S:
                self._said = now
                self._tell(name, status)
            if now >= until or (done is not None and done(status)):
                return
            time.sleep(min(POLL_S, until - now))

    def _tell(self, name: str, status: Status) -> None:
        events = f", {len(self._reader.events):,} events" if self._reader else ""
        worse = {**status.refused, **status.failed}
        say(
            f"{name}: {status.online:,} online, {status.beats:,} beats, "
            f"latest {status.late_max_s * 1000:.0f} ms{events}, {status.lost.total():,} ended"
            + (f", {worse}" if worse else "")
        )
