"""What is held against a server that does not keep its promises: each judge sees its fault, and only that."""

import math
from collections import Counter
from collections.abc import Callable

import pytest

from loadtest.outcome import CaseOutcome
from loadtest.stream_events import StreamEvent
from presence.protocol import Code
from tests.system.security.__main__ import status
from tests.system.security.floods import (
    FloodFigures,
    Forged,
    GrantedLoad,
    Rest,
    judge_cycles,
    judge_flood,
    judge_flooders,
    judge_forged,
    sizes,
)
from tests.system.security.load import GRANTED, LOST, Flooded, Visit
from tests.system.security.silence import AnsweredKeepalive, judge_silent, wrong_events
from tests.system.security.tls import TlsCost, judge_tls

GONE = Visit(0.0, 5.1, Code.LOGIN_TIMEOUT, sent=5)
GOOD, REFUSED = Visit(0.0, 0.01, GRANTED), Visit(0.0, 0.01, Code.BUSY, 1.5)
KEPT = {"sessions": 0, "transport.connections": 0, "outbox.queued": 0, "admission.uid_logins_kept": 0}
BASE = Rest(50_000_000, 20)
BEFORE = GrantedLoad(10, [GOOD] * 10, 1.0)


def silence(stay: Visit = GONE, login: Visit = GOOD, secured: Visit = GONE) -> list[str]:
    return judge_silent([GONE, stay], [secured], [login] * 10, []).failures


def cycles(rest: Rest = BASE, kept: dict[str, int] = KEPT) -> list[str]:
    return judge_cycles(BASE, rest, kept, Counter({GRANTED: 100})).failures


def flood(granted: int, *others: Visit) -> list[str]:
    last = GrantedLoad(100, [GOOD] * granted + [REFUSED] * 90 + [*others], 1.0)
    return judge_flood("flood", [BEFORE, last], []).failures


def forged(good: int, *bad: Visit) -> list[str]:
    worst = Forged(9.0, [GOOD] * good + [REFUSED] * (10 - good), [REFUSED, *bad])
    return judge_forged([Forged(0.0, [GOOD] * 10, []), worst], []).failures


def flooders(p99_s: float = 0.02, cut_off: int = 1, otherwise: int = 0) -> list[str]:
    return judge_flooders(
        {"queries": FloodFigures(Flooded(100, cut_off, otherwise), [p99_s] * 9)}, []
    ).failures


def lost_over_tls(lost: int) -> list[str]:
    return judge_tls(TlsCost(17_000.0, 14.0, 900.0, lost), TlsCost(500.0, 5.0, 200.0, 0), []).failures


@pytest.mark.parametrize(
    ("judge", "fault"),
    [
        (silence, ""),
        (lambda: silence(GONE._replace(took_s=math.inf)), "were open at 5.5 s"),
        (lambda: silence(GONE._replace(took_s=5.51)), "were open at 5.5 s"),
        (lambda: silence(GONE._replace(took_s=4.9)), "closed too early"),
        (lambda: silence(secured=GONE._replace(took_s=math.inf)), "were open at 5.5 s"),
        (lambda: silence(GONE._replace(code=LOST)), "not told why"),
        (lambda: silence(login=GOOD._replace(took_s=0.26)), "p99 of logins"),
        (lambda: silence(login=REFUSED), "logins of users were not granted"),
        (lambda: cycles(Rest(50_499_000, 20)), ""),
        (lambda: cycles(Rest(50_510_000, 20)), "away from the base"),
        (lambda: cycles(Rest(49_400_000, 20)), "away from the base"),
        (lambda: cycles(Rest(50_000_000, 21)), "away from the base"),
        (lambda: cycles(kept={**KEPT, "addresses_kept": 3}), "3 addresses_kept are left"),
        (lambda: cycles(kept={}), "nobody says"),
        (lambda: flood(9), ""),
        (lambda: flood(8), "8 logins a second were granted, 10 with less"),
        (lambda: flood(9, Visit(0.0, 0.01, LOST)), "without a time to return"),
        (lambda: flood(9, Visit(0.0, 0.01, Code.BUSY)), "without a time to return"),
        (lambda: flood(9, Visit(0.0, 9.0, Code.LOGIN_TIMEOUT, 1.0)), "without a time to return"),
        (lambda: judge_flood("flood", [BEFORE, BEFORE], []).failures, "nothing was injected"),
        (lambda: forged(9), ""),
        (lambda: forged(8), "of good logins were granted"),
        (lambda: forged(10, GOOD), "1 forged tokens were taken"),
        (flooders, ""),
        (lambda: flooders(0.3), "p99 of others' answers"),
        (lambda: flooders(cut_off=0), "never cut off"),
        (lambda: flooders(otherwise=2), "without a word"),
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
        StreamEvent(f"{n}-0", kind, "ann", "s1", 0, n, "", n) for n, kind in ((10, "online"), (11, "offline"))
    )
    answered = {"s1": AnsweredKeepalive("ann", 15.0)}
    assert wrong_events([online], answered) == ([], 0)
    assert wrong_events([online, offline], answered) == (["ann"], 0)
    assert wrong_events([online, online], answered) == ([], 1)


def test_the_exit_status_tells_what_was_broken_from_what_shows_nothing() -> None:
    kept, broken = CaseOutcome("a", "x", ""), CaseOutcome("b", "x", "", ["no"])
    assert [status([kept]), status([kept, broken]), status([kept, CaseOutcome("c", "", "")])] == [0, 1, 2]
