"""What is held against a server that does not keep its promises: each judge sees its fault, and only that."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from loadtest.events import Event
from loadtest.outcome import Outcome
from loadtest.security.__main__ import status
from loadtest.security.floods import (
    Forged,
    Found,
    Load,
    Rest,
    judge_cycles,
    judge_flood,
    judge_flooders,
    judge_forged,
    sizes,
)
from loadtest.security.load import GRANTED, LOST, Attempt, Flooded, Stay
from loadtest.security.samples import mann_whitney
from loadtest.security.silence import Answered, judge_silent, told_wrongly
from loadtest.security.silence import Found as Silence
from loadtest.security.tls import Cost, judge_tls
from loadtest.security.tokens import CONTROL, KNOWN, UNKNOWN, Tries, judge_timing, judge_tokens
from protocol import Code

GONE = Stay(5.1, Code.LOGIN_TIMEOUT, 5)
GOOD, REFUSED = Attempt(0.0, 0.01, GRANTED, 0.0), Attempt(0.0, 0.01, Code.BUSY, 1.5)
KEPT = {"sessions": 0, "transport.connections": 0, "outbox.queued": 0, "admission.uid_logins_kept": 0}
BASE = Rest(50_000_000, 20)
BEFORE = Load(10, [GOOD] * 10, 1.0)


def silence(*stays: Stay, took_s: float = 0.01, code: int = GRANTED) -> list[str]:
    beside = [[Attempt(0.0, took_s, code, 0.0)] * 10]
    return judge_silent(Silence([GONE, *stays], beside, [[GOOD] * 10])).failures


def cycles(rest: Rest = BASE, kept: dict[str, int] = KEPT) -> list[str]:
    return judge_cycles(BASE, rest, kept, Counter({GRANTED: 100})).failures


def flood(granted: int, *others: Attempt) -> list[str]:
    last = Load(100, [GOOD] * granted + [REFUSED] * 90 + [*others], 1.0)
    return judge_flood("flood", [BEFORE, last], []).failures


def forged(good: int, *bad: Attempt) -> list[str]:
    worst = Forged(9.0, [GOOD] * good + [REFUSED] * (10 - good), [REFUSED, *bad])
    return judge_forged([Forged(0.0, [GOOD] * 10, []), worst], []).failures


def flooders(p99_s: float = 0.02, otherwise: int = 0) -> list[str]:
    seen = Found([[p99_s] * 9], [[0.01] * 9], [Flooded(100, 1, otherwise)])
    return judge_flooders({"queries": seen}).failures


def tokens(as_another: int = Code.AUTH_FAILED, good: int = 1, **of: object) -> list[str]:
    tries = Tries(Counter({"kid": 10, "exp": 10}), Counter(), good=good, words={"no"})
    for name, value in of.items():
        setattr(tries, name, value)
    return judge_tokens(tries, Tries(Counter({"kid": 1}), words={"no"}), {as_another}, []).failures


def timing(unknown_us: float = 0.0, control_us: float = -200.0) -> list[str]:
    chance = random.Random(3)
    shifts = {KNOWN: 0.0, UNKNOWN: unknown_us, CONTROL: control_us}
    times = {
        way: [(500 + shift + chance.expovariate(1 / 50)) / 1e6 for _ in range(2000)]
        for way, shift in shifts.items()
    }
    return judge_timing(times, 0, []).failures


def lost_over_tls(lost: int) -> list[str]:
    return judge_tls([Cost(17_000.0, 14.0, 900.0, lost)], [Cost(500.0, 5.0, 200.0, 0)], []).failures


@pytest.mark.parametrize(
    ("judge", "fault"),
    [
        (lambda: silence(GONE), ""),
        (lambda: silence(GONE._replace(lived_s=math.inf)), "were open at 5.5 s"),
        (lambda: silence(GONE._replace(lived_s=5.51)), "were open at 5.5 s"),
        (lambda: silence(GONE._replace(lived_s=4.9)), "closed too early"),
        (lambda: silence(GONE._replace(code=0)), "not told why"),
        (lambda: silence(took_s=0.0109), ""),
        (lambda: silence(took_s=0.0111), "times as long"),
        (lambda: silence(code=Code.BUSY), "logins of users were not granted"),
        (lambda: cycles(Rest(50_499_000, 20)), ""),
        (lambda: cycles(Rest(50_510_000, 20)), "away from the base"),
        (lambda: cycles(Rest(49_400_000, 20)), "away from the base"),
        (lambda: cycles(Rest(50_000_000, 21)), "away from the base"),
        (lambda: cycles(kept={**KEPT, "addresses_kept": 3}), "3 addresses_kept are left"),
        (lambda: cycles(kept={}), "nobody says"),
        (lambda: flood(9), ""),
        (lambda: flood(8), "8 logins a second were granted, 10 with less"),
        (lambda: flood(9, Attempt(0.0, 0.01, LOST, 0.0)), "without a time to return"),
        (lambda: flood(9, Attempt(0.0, 0.01, Code.BUSY, 0.0)), "without a time to return"),
        (lambda: flood(9, Attempt(0.0, 9.0, Code.LOGIN_TIMEOUT, 1.0)), "without a time to return"),
        (lambda: judge_flood("flood", [BEFORE, BEFORE], []).failures, "nothing was injected"),
        (lambda: forged(9), ""),
        (lambda: forged(8), "of good logins were granted"),
        (lambda: forged(10, GOOD), "1 forged tokens were taken"),
        (flooders, ""),
        (lambda: flooders(0.3), "p99 of others' answers"),
        (lambda: flooders(otherwise=2), "without a word"),
        (tokens, ""),
        (lambda: tokens(accepted=Counter({"alg": 1})), "1 tampered tokens were taken"),
        (lambda: tokens(unchecked=2), "2 tokens were not checked"),
        (lambda: tokens(words={"no", "expired"}), "refusals differ"),
        (lambda: tokens(as_another=0), "another user's token"),
        (lambda: tokens(refused=Counter(kid=5000)), "nothing was injected"),
        (timing, ""),
        (lambda: timing(unknown_us=10.0), "unknown user is told"),
        (lambda: timing(control_us=0.0), "nothing was injected"),
        (lambda: lost_over_tls(0), ""),
        (lambda: lost_over_tls(1), "1 connections were lost"),
    ],
)
def test_each_fault_is_found(judge: Callable[[], list[str]], fault: str) -> None:
    found = judge()
    assert bool(found) is bool(fault)
    assert all(fault in each for each in found)


def test_sizes_are_found_by_their_names_and_counters_are_not() -> None:
    figures = {"core": {"sessions": 3, "logins": 9}, "addresses": {"addresses_kept": 2}, "queued": 0}
    assert sizes(figures) == {"core.sessions": 3, "addresses.addresses_kept": 2, "queued": 0}


def test_an_answer_behind_an_offline_event_is_found() -> None:
    online, offline = (
        Event(f"{n}-0", kind, "ann", "s1", 0, n, "", n) for n, kind in ((10, "online"), (11, "offline"))
    )
    answered = {"s1": Answered("ann", 15.0)}
    assert told_wrongly([online], answered) == ([], 0)
    assert told_wrongly([online, offline], answered) == (["ann"], 0)
    assert told_wrongly([online, online], answered) == ([], 1)


def test_the_exit_status_tells_what_was_broken_from_what_shows_nothing() -> None:
    kept, broken = Outcome("a", "x", ""), Outcome("b", "x", "", ["no"])
    assert [status([kept]), status([kept, broken]), status([kept, Outcome("c", "", "")])] == [0, 1, 2]


def test_two_samples_are_told_apart_where_they_differ() -> None:
    # U = 4 of 25, no ties: z = (|4 - 12.5| - 0.5) / sqrt(25 * 11 / 12) = 1.671
    assert mann_whitney([1, 2, 3, 5, 7.5], [4, 6, 7, 8, 9]) == pytest.approx(0.0947, abs=1e-3)
    assert mann_whitney([1.0] * 30, [1.0] * 30) == 1.0
    assert mann_whitney([1, 1, 2, 2] * 10, [1, 1, 2, 2] * 10) > 0.99
    chance = random.Random(1)
    first, same = ([chance.gauss(0.0, 1.0) for _ in range(10_000)] for _ in range(2))
    assert mann_whitney(first, same) > 0.001
    assert mann_whitney(first, [value + 0.1 for value in same]) < 1e-6
