"""Whether the judge of follow-ups sees what is wrong."""

import pytest

from loadtest.events import Event
from loadtest.followups.__main__ import Told, judge

AFTER_MS, LATE_MS, NOW_MS = 1000, 100, 100_000


def event(id: str, uid: str, type: str) -> Event:
    return Event(id, type, uid, "s", 1, 0, "", 0.0)


ANN = [event("1-0", "ann", "online"), event("10000-0", "ann", "offline")]
BOB = [
    event("2-0", "bob", "online"),
    event("10000-1", "bob", "offline"),
    event("10500-0", "bob", "online"),
]


def told(
    uid: str = "ann", at_ms: int = 11_020, *, offline: tuple[int, int] = (10_000, 0), n: int = 0
) -> Told:
    return Told((at_ms, n), f"back:{uid}:{offline[0]}", uid, offline, 11_001, at_ms)


def broken(*follow_ups: Told, events: list[Event] | None = None, now_ms: int = NOW_MS) -> list[str]:
    found = judge(
        events or [*ANN, *BOB], follow_ups, after_ms=AFTER_MS, late_max_ms=LATE_MS, now_ms=now_ms
    ).broken
    return [line.partition(",")[0] for line in found]


def test_who_stays_away_gets_one_and_who_returns_none() -> None:
    verdict = judge([*ANN, *BOB], [told()], after_ms=AFTER_MS, late_max_ms=LATE_MS, now_ms=NOW_MS)
    assert (verdict.owed, verdict.told, verdict.late_ms, verdict.broken) == ({"ann"}, {"ann"}, [19], [])


@pytest.mark.parametrize(
    ("follow_ups", "complaint"),
    [
        ([], "1 missing"),
        ([told(), told(at_ms=11_030)], "1 twice in the stream"),
        ([told(), told("bob", offline=(10_000, 1))], "1 to who came back in time"),
        ([told(at_ms=10_999)], "1 early"),
    ],
)
def test_each_fault_is_seen(follow_ups: list[Told], complaint: str) -> None:
    assert complaint in broken(*follow_ups)


@pytest.mark.parametrize("follow_ups", [[], [told()]])
def test_a_return_about_when_it_is_due_makes_either_right(follow_ups: list[Told]) -> None:
    assert broken(*follow_ups, events=[*ANN, event("11050-0", "ann", "online")]) == []


def test_one_that_is_told_after_the_return_is_seen() -> None:
    late = told(at_ms=11_060)
    assert broken(late, events=[*ANN, event("11050-0", "ann", "online")]) == ["1 after the return"]


def test_what_is_not_due_for_long_is_not_missing_yet() -> None:
    assert broken(now_ms=11_050) == []
