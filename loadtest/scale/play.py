"""What is played: ramp, two holds, a mass silence, a last beat of all; each is measured and judged."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtest import usage
from loadtest.scale.fleet import Figures, Fleet, Status
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
LATE_S = 0.25  # at p99; a generator that is later than this is at its limits


@dataclass
class Ramp:
    """All logged in: how many, in how many seconds, login to ok in rising order, refusals and failures."""

    online: int
    seconds: float
    login_s: list[float]
    refused: dict[str, int]
    failed: dict[str, int]


@dataclass
class Hold:
    """A time of nothing but beats.

    Attributes:
        beat_s, seconds: the interval, and how long it was held.
        beats: keepalives that were sent.
        cpu_s: processor time by process.
        memory: of all processes of the server, at the end; the largest of the samples.
        lost: connections that ended.
        offline: offline events.
        generators: how the load was.
    """

    beat_s: float
    seconds: float
    beats: int
    cpu_s: dict[int, float]
    memory: usage.Memory
    lost: int
    offline: int
    generators: Figures

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time a keepalive, of all processes."""
        return sum(self.cpu_s.values()) / max(1, self.beats) * 1e6

    @property
    def core_share(self) -> float:
        """Cores that all processes kept busy."""
        return sum(self.cpu_s.values()) / self.seconds


class Play:
    """The phases, one method each, on a server that runs.

    Args:
        fleet: the generators.
        pids: tells the processes that are measured.
        reader: reads the server's events; None where there are none.
        say: takes lines of progress.
    """

    def __init__(
        self,
        fleet: Fleet,
        pids: Callable[[], Sequence[int]],
        reader: Reader | None = None,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._fleet = fleet
        self._pids = pids
        self._reader = reader
        self._say = say
        self._said = 0.0
        self._period = self._ended = 0  # events and offline events before it

    def ramp(self, per_second: float, beat_s: float) -> Ramp:
        """Let all log in, and beat from then on; wait until they are, and have beaten once."""
        self._period, self._ended = len(self._reader.events) if self._reader else 0, self._offline
        self._fleet.do("mark")
        self._fleet.do("beat", beat_s)
        begun = time.monotonic()
        self._fleet.bring(per_second)
        status = self._wait("logging in", RAMP_TIMEOUT_S, lambda status: not status.arriving)
        seconds, figures = time.monotonic() - begun, self._fleet.figures()
        self._wait("first beats", beat_s)
        return Ramp(
            status.online, seconds, figures.login_s, dict(figures.status.refused), dict(figures.status.failed)
        )

    def hold(self, beat_s: float, seconds: float) -> Hold:
        """Let all beat at that interval, and measure."""
        pids = self._pids()
        self._fleet.do("beat", beat_s)
        self._fleet.do("mark")
        before, lost, offline = usage.cpu_s(pids), self._fleet.status().lost.total(), self._offline
        begun = time.monotonic()
        half = usage.memory(*pids) if seconds < 2 * PROGRESS_S else self._half_time(pids, beat_s, seconds)
        self._wait(f"a beat each {beat_s:g} s", begun + seconds - time.monotonic())
        elapsed, after = time.monotonic() - begun, usage.cpu_s(pids)
        figures, end = self._fleet.figures(), usage.memory(*pids)
        return Hold(
            beat_s,
            elapsed,
            figures.status.beats,
            {pid: max(0.0, after[pid] - before[pid]) for pid in pids},
            usage.Memory(max(half.pss, end.pss), max(half.rss, end.rss)),
            figures.status.lost.total() - lost,
            self._offline - offline,
            figures,
        )

    def silence(self, promise: Promise) -> Ends:
        """Let all fall silent, wait for their ends, and judge the period."""
        self._fleet.do("silence")
        return self._end("silence", promise)

    def last_beat(self, within_s: float, promise: Promise) -> Ends:
        """Let all send one more beat within that time, then as `silence`.

        Here the time from the first event to the last is what is promised, so `SPAN_MAX_S` is the slack.
        """
        self._fleet.do("last_beat", within_s)
        self._wait("one last beat", within_s + LAST_BEAT_MARGIN_S, lambda status: not status.is_beating)
        return self._end("silence after it", replace(promise, slack=SPAN_MAX_S))

    def _half_time(self, pids: Sequence[int], beat_s: float, seconds: float) -> usage.Memory:
        self._wait(f"a beat each {beat_s:g} s", seconds / 2)
        return usage.memory(*pids)

    def _end(self, name: str, promise: Promise) -> Ends:
        assert self._reader is not None
        reader = self._reader
        truths = self._fleet.truths()
        due, expected = promise.delay_max + EVENTS_MARGIN_S, self._ended + len(truths)
        self._wait(name, due, lambda _: reader.offline >= expected)
        self._fleet.do("hear")
        self._wait(f"{name}, hanging up", HANG_UP_TIMEOUT_S, lambda status: not status.online)
        self._wait(name, QUIET_S)
        events = reader.events[self._period :]
        verdict = judge(truths, events, promise)
        for broken in reader.broken:
            verdict.note(broken, name)
        return verdict

    @property
    def _offline(self) -> int:
        return self._reader.offline if self._reader else 0

    def _wait(self, name: str, seconds: float, done: Callable[[Status], bool] | None = None) -> Status:
        """Wait, for that time or until something is so; tell how it stands meanwhile."""
        until = time.monotonic() + seconds
        while True:
            status, now = self._fleet.status(), time.monotonic()
            if now - self._said >= PROGRESS_S:
                self._said = now
                self._tell(name, status)
            if now >= until or (done is not None and done(status)):
                return status
            time.sleep(min(POLL_S, until - now))

    def _tell(self, name: str, status: Status) -> None:
        events = f", {len(self._reader.events):,} events" if self._reader else ""
        worse = {**status.refused, **status.failed}
        self._say(
            f"{name}: {status.online:,} online, {status.beats:,} beats, "
            f"latest {status.late_max_s * 1000:.0f} ms{events}, {status.lost.total():,} ended"
            + (f", {worse}" if worse else "")
        )


def percentile(rising: Sequence[float], share: float) -> float:
    """Return the value below which that share of them lies; 0.0 if there are none."""
    return rising[min(len(rising) - 1, int(len(rising) * share))] if rising else 0.0
