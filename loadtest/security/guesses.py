"""Whoever guesses tokens is answered late; a good one is let in at once, from his address and as his victim.

Runs alternate: the guesser has the address, and means the user, of those who behave, or others. So what
guessing costs the machine is in both, and the ratio of a pair is what the server makes them pay for it.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from loadtest.nodes.outcome import Outcome, say
from loadtest.security.apart import processes
from loadtest.security.attempts import GRANTED, Attempt, Frame, Plan, attempts
from loadtest.security.credentials import Frames, Issuer, login, spoilt
from loadtest.security.guarded import Guarded
from loadtest.security.samples import Ratios, Spread, percentile
from protocol import Code

SHARED, ELSEWHERE, HOME = "127.0.7.1", "127.0.7.2", "127.0.7.3"  # addresses: of a NAT, and of two homes
VICTIM, NOBODY = "victim", "nobody"
SLOWER_MAX = 1.1
HELD_MIN_S = 1.0  # a guess beyond what is allowed has to wait, as long as `guess_delay` in the end
LEAD_S = 0.3
SETTLE_S = 1.0
FLAGS = ("--guess-rate", "1", "--guess-burst", "20", "--guess-delay", "3", "--uid-login-rate", "100000")


@dataclass(frozen=True)
class Sizes:
    """How much is done: guesses and good logins a second, seconds of a run, pairs of runs."""

    guesses: float = 100.0
    logins: float = 40.0
    seconds: float = 8.0
    pairs: int = 8


@dataclass
class Found:
    """Times of good logins, by runs: at the guesser's address and as his victim, and beside his others."""

    beside: list[list[float]] = field(default_factory=list)
    apart: list[list[float]] = field(default_factory=list)
    refused: int = 0
    guesses: list[Attempt] = field(default_factory=list)

    def ratios(self, share: float) -> Ratios:
        """Return how many times as long a percentile of good logins is, by pairs."""
        pairs = zip(self.beside, self.apart, strict=True)
        return Ratios.of(percentile(one, share) / percentile(other, share) for one, other in pairs)


class Neighbours:
    """A guesser, and two who have good tokens: one shares his address, the other his victim's name."""

    def __init__(self, on: Guarded, sizes: Sizes, pool: ProcessPoolExecutor) -> None:
        self._sizes = sizes
        self._address = on.stage.serving.address
        self._pool = pool
        issuer = on.issuers[0]
        self._wrong = {
            uid: Frames([login(uid, spoilt(issuer.token(uid, jti=str(number)))) for number in range(200)])
            for uid in (VICTIM, NOBODY)
        }
        self._good = Frames([*_alternating(issuer, int(sizes.logins * sizes.seconds))])

    def run(self, *, is_beside: bool) -> tuple[list[Attempt], list[Attempt]]:
        """Return good logins and guesses."""
        sizes, begin = self._sizes, time.monotonic() + LEAD_S
        at, uid = (SHARED, VICTIM) if is_beside else (ELSEWHERE, NOBODY)
        guessing = self._plan(self._wrong[uid], sizes.guesses, sizes.seconds + SETTLE_S, begin, [at])
        good = self._plan(self._good, sizes.logins, sizes.seconds, begin + SETTLE_S, [SHARED, HOME])
        guessed, logged_in = self._pool.submit(attempts, guessing), self._pool.submit(attempts, good)
        return logged_in.result(), guessed.result()

    def _plan(self, frame: Frame, rate: float, seconds: float, begin: float, sources: Sequence[str]) -> Plan:
        return Plan(self._address, frame, int(rate * seconds), rate, begin, sources)


def _alternating(issuer: Issuer, count: int) -> Iterator[bytes]:
    """Logins of users of the shared address, and, from home, of the victim himself."""
    for number in range(count):
        yield issuer.login(VICTIM if number % 2 else f"neighbour-{number}")


def guesses(on: Guarded, sizes: Sizes) -> Outcome:
    """Play all runs."""
    found = Found()
    with processes(2) as pool:
        neighbours = Neighbours(on, sizes, pool)
        for pair in range(sizes.pairs):
            for is_beside in (True, False) if pair % 2 else (False, True):
                good, guessed = neighbours.run(is_beside=is_beside)
                (found.beside if is_beside else found.apart).append([each.took_s for each in good])
                found.refused += sum(each.code != GRANTED for each in good)
                found.guesses += guessed
            say(f"pair {pair + 1} of {sizes.pairs}: p50 {found.ratios(0.5)}, p99 {found.ratios(0.99)}")
    return judge(found, sizes, on.stage.others_hurt())


def judge(found: Found, sizes: Sizes, broken: list[str]) -> Outcome:
    """Hold what was seen against what is promised."""
    p50, p99 = found.ratios(0.5), found.ratios(0.99)
    waits = Spread.of([each.took_s for each in found.guesses])
    wrong = sum(each.code != Code.AUTH_FAILED for each in found.guesses)
    if found.refused:
        broken.append(f"{found.refused} logins with good tokens were not granted")
    if not p50.median <= SLOWER_MAX:
        broken.append(f"good logins take {p50.median:.2f} times as long beside guesses, {SLOWER_MAX} allowed")
    if not waits.p50 >= HELD_MIN_S:
        broken.append(f"guesses are answered after {waits.p50:.2f} s at the median")
    if wrong:
        broken.append(f"{wrong} guesses were not refused with 303")
    beside, apart = (
        Spread.of([each for run in runs for each in run]) for runs in (found.beside, found.apart)
    )
    measured = (
        f"guesses answered after {waits.ms()}; good logins from that address, and as that user, "
        f"{beside.ms()}, while others are guessed at {apart.ms()}; "
        f"by {len(found.beside)} pairs p50 {p50}, p99 {p99}"
    )
    injected = f"{len(found.guesses):,} guesses, {sizes.guesses:g} a second" if found.guesses else ""
    return Outcome("guesses", injected, measured, broken)
