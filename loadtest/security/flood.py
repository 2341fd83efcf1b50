"""Ten times as many logins as a server grants: as many are granted as ever, and the rest told to return.

What a server can do is set (`login_rate`), as an operator sets it: to what it can serve beside refusing all
the rest.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.hostile.stage import Stage, in_words
from loadtest.nodes.outcome import Outcome, say
from loadtest.security.apart import processes
from loadtest.security.attempts import GRANTED, LOST, UNANSWERED, Attempt, Frame, Plain, Plan, attempts
from loadtest.security.samples import Spread
from loadtest.usage import cpu_s
from protocol import Code

GOODPUT_MIN = 0.9
LEAD_S = 0.3
SETTLE_S = 2.0  # of each load until it counts: what the bucket had saved is spent
FLOOD = 10
IDLE_TIMEOUT_S = 5.0  # of those who behave: they are ended soon if they are not heard


@dataclass(frozen=True)
class Sizes:
    """How much is done.

    Attributes:
        capacity: logins a second that the server grants.
        loads: logins that are offered, in multiples of that, one after the other.
        seconds: of each load that count.
    """

    capacity: int = 400
    loads: Sequence[float] = (1.0, 2.0, FLOOD)
    seconds: float = 20.0

    @property
    def flags(self) -> tuple[str, ...]:
        """How the server is started."""
        rate = str(self.capacity)
        return ("--login-rate", rate, "--login-burst", rate, "--idle-timeout", f"{IDLE_TIMEOUT_S:g}")


@dataclass(frozen=True)
class Load:
    """What came of one load.

    Attributes:
        offered: logins a second that were due.
        ended: the attempts that counted.
        seconds: in which they were due.
        cpu: share of a processor that the server took.
    """

    offered: float
    ended: Sequence[Attempt]
    seconds: float
    cpu: float

    def number(self, *codes: int) -> int:
        """Return how many ended so."""
        return sum(each.code in codes for each in self.ended)

    @property
    def goodput(self) -> float:
        """Logins a second that were granted."""
        return self.number(GRANTED) / self.seconds

    @property
    def unread(self) -> int:
        """How many were not granted, and were not told that the server is busy and when to come back."""
        told = sum(
            each.code in (Code.BUSY, Code.RATE_LIMITED) and each.retry_after > 0 for each in self.ended
        )
        return len(self.ended) - self.number(GRANTED) - told

    def __str__(self) -> str:
        granted = Spread.of([each.took_s for each in self.ended if each.code == GRANTED])
        refused = Spread.of([each.took_s for each in self.ended if each.code > GRANTED])
        return (
            f"{self.offered:,.0f}/s: granted {self.goodput:,.0f}/s in {granted.ms()}, refused "
            f"{len(self.ended) / self.seconds - self.goodput:,.0f}/s in {refused.ms()}, server {self.cpu:.0%}"
        )


def offer(stage: Stage, frame: Frame, per_second: float, seconds: float) -> Load:
    """Offer a server so many logins a second; those of the first `SETTLE_S` do not count."""
    pid, count = stage.serving.process.pid, int(per_second * (SETTLE_S + seconds))
    with processes(1) as pool:
        begin = time.monotonic() + LEAD_S
        future = pool.submit(attempts, Plan(stage.serving.address, frame, count, per_second, begin))
        time.sleep(LEAD_S + SETTLE_S)
        before = cpu_s([pid])[pid]
        time.sleep(seconds)
        cpu = (cpu_s([pid])[pid] - before) / seconds
        ended = future.result()
    return Load(per_second, [each for each in ended if each.due >= begin + SETTLE_S], seconds, cpu)


def flood(stage: Stage, sizes: Sizes, frame: Frame | None = None, *, name: str = "flood") -> Outcome:
    """Offer more and more; `frame` makes the logins, of users who say their name only without it."""
    loads = []
    for number, times in enumerate(sizes.loads):
        loads.append(offer(stage, frame or Plain(f"flood{number}"), times * sizes.capacity, sizes.seconds))
        say(str(loads[-1]))
    return judge(loads, sizes, stage.others_hurt(), name)


def judge(loads: Sequence[Load], sizes: Sizes, hurt: list[str], name: str) -> Outcome:
    """Hold the last and greatest load against the best of those before."""
    *_, last = loads
    broken = [*hurt]
    peak = max(each.goodput for each in loads[:-1])
    share = last.goodput / peak if peak else 0.0
    if not share >= GOODPUT_MIN:
        broken.append(f"{last.goodput:.0f} logins a second were granted, {peak:.0f} with less load")
    unread = sum(each.unread for each in loads)
    if unread:
        lost = sum(each.number(LOST, UNANSWERED) for each in loads)
        broken.append(f"{unread} refusals without a time to return, {lost} of them without a word")
    refused = len(last.ended) - last.number(GRANTED)
    measured = "; ".join(map(str, loads)) + f"; {share:.1%} of the peak; {in_words(hurt)}"
    injected = f"{last.offered / sizes.capacity:.0f} times as many logins as are granted" if refused else ""
    return Outcome(name, injected, measured, broken)
