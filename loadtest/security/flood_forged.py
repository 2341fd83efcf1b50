"""A flood of forged tokens beside users with good ones: are as many of these let in as ever?

The forged ones come from many addresses, each with the name of a user of its own, signed with a key that the
server does not have; each costs it a check as a good one does. The honest come from one address that they
share with some who forge, at a rate that the server can well serve.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from loadtest.hostile.stage import in_words
from loadtest.nodes.outcome import Outcome, say
from loadtest.security.apart import processes
from loadtest.security.attempts import GRANTED, Attempt, Plan, attempts
from loadtest.security.credentials import Frames, login, spoilt
from loadtest.security.flood import GOODPUT_MIN, LEAD_S, SETTLE_S
from loadtest.security.guarded import Guarded
from loadtest.security.samples import Spread
from protocol import Code

FORGERS = 64  # addresses
PREPARED = 2000


@dataclass(frozen=True)
class Sizes:
    """How much is done: good logins a second, forged ones beside them by turns, and seconds of each."""

    honest: float = 100.0
    forged: Sequence[float] = (0.0, 500.0, 2000.0)
    seconds: float = 20.0


@dataclass(frozen=True)
class Load:
    """What came of good logins beside so many forged ones a second."""

    forged: float
    good: Sequence[Attempt]
    bad: Sequence[Attempt]

    @property
    def share(self) -> float:
        """Of good logins, that were granted."""
        return sum(each.code == GRANTED for each in self.good) / len(self.good)

    @property
    def forged_in(self) -> int:
        """How many forged tokens were taken."""
        return sum(each.code == GRANTED for each in self.bad)

    def __str__(self) -> str:
        refused = sum(each.code == Code.AUTH_FAILED for each in self.bad)
        busy = sum(each.code == Code.BUSY for each in self.bad)
        times = Spread.of([each.took_s for each in self.good if each.code == GRANTED])
        return (
            f"beside {self.forged:,.0f} forged a second {self.share:.1%} of the good granted in "
            f"{times.ms()}, forged refused {refused:,}, sent away unchecked {busy:,}"
        )


def flood_forged(on: Guarded, sizes: Sizes) -> Outcome:
    """Offer good logins, with more and more forged ones beside them."""
    issuer = on.issuers[0]
    count = int(sizes.honest * (SETTLE_S + sizes.seconds))
    good = Frames([issuer.login(f"honest-{number % PREPARED}") for number in range(count)])
    bad = Frames([login(uid, spoilt(issuer.token(uid))) for uid in (f"forged-{n}" for n in range(PREPARED))])
    loads = []
    with processes(2) as pool:
        for rate in sizes.forged:
            loads.append(_offer(on, sizes, pool, good, (bad, rate)))
            say(str(loads[-1]))
    return judge(loads, sizes, on.stage.others_hurt())


def _offer(
    on: Guarded, sizes: Sizes, pool: ProcessPoolExecutor, good: Frames, forged: tuple[Frames, float]
) -> Load:
    bad, rate = forged
    address, begin = on.stage.serving.address, time.monotonic() + LEAD_S
    seconds = SETTLE_S + sizes.seconds
    sources = [f"127.0.8.{number + 1}" for number in range(FORGERS)]
    honest = Plan(address, good, len(good.frames), sizes.honest, begin, sources[:1])
    flooding = Plan(address, bad, int(rate * seconds), max(rate, 1.0), begin, sources)
    futures = [pool.submit(attempts, plan) for plan in (honest, flooding)]
    came, forged_ones = (future.result() for future in futures)
    return Load(rate, [each for each in came if each.due >= begin + SETTLE_S], forged_ones)


def judge(loads: Sequence[Load], sizes: Sizes, hurt: list[str]) -> Outcome:
    """Hold the greatest flood against none."""
    alone, *_, worst = loads
    broken = [*hurt]
    if not worst.share >= GOODPUT_MIN * alone.share:
        broken.append(f"{worst.share:.1%} of good logins were granted, {alone.share:.1%} without a flood")
    if taken := sum(each.forged_in for each in loads):
        broken.append(f"{taken} forged tokens were taken")
    forged = sum(len(each.bad) for each in loads)
    measured = "; ".join([*map(str, loads), in_words(hurt)])
    return Outcome(
        "flood-forged",
        f"{forged:,} forged tokens beside {sizes.honest:g} good ones a second" if forged else "",
        measured,
        broken,
    )
