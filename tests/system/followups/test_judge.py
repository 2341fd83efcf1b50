"""Whether the judge of follow-ups sees what is wrong."""

import pytest

from loadtest.stream_events import StreamEvent
from tests.system.followups.__main__ import FollowUpEntry, judge

AFTER_MS, LATE_MS, NOW_MS = 1000, 100, 100_000


def event(id: str, uid: str, type: str) -> StreamEvent:
    return StreamEvent(id, type, uid, "s", 1, 0, "", 0.0)


ANN = [event("1-0", "ann", "online"), event("10000-0", "ann", "offline")]
BOB = [
    event("2-0", "bob", "online"),
    event("10000-1", "bob", "offline"),
    event("10500-0", "bob", "online"),
]


def follow_up(
    uid: str = "ann", at_ms: int = 11_020, *, offline: tuple[int, int] = (10_000, 0), n: int = 0
) -> FollowUpEntry:
    return FollowUpEntry((at_ms, n), f"back:{uid}:{offline[0]}", uid, offline, 11_001, at_ms)


BACK_LATE = [*ANN, event("11050-0", "ann", "online")]  # about when it is due, which makes either right
BOBS = follow_up("bob", offline=(10_000, 1))


@pytest.mark.parametrize(
    ("events", "follow_ups", "now_ms", "complaint"),
    [
        ([*ANN, *BOB], [], NOW_MS, "1 missing"),
        ([*ANN, *BOB], [], 11_050, None),  # not due for long
        ([*ANN, *BOB], [follow_up(), follow_up(at_ms=11_030)], NOW_MS, "1 twice in the stream"),
        ([*ANN, *BOB], [follow_up(), BOBS], NOW_MS, "1 to who came back in time"),
        ([*ANN, *BOB], [follow_up(at_ms=10_999)], NOW_MS, "1 early"),
        (BACK_LATE, [], NOW_MS, None),
        (BACK_LATE, [follow_up()], NOW_MS, None),
        (BACK_LATE, [follow_up(at_ms=11_060)], NOW_MS, "1 after the return"),
    ],
)
def test_each_fault_is_seen(
    events: list[StreamEvent], follow_ups: list[FollowUpEntry], now_ms: int, complaint: str | None
) -> None:
    found = judge(events, follow_ups, after_ms=AFTER_MS, late_max_ms=LATE_MS, now_ms=now_ms).broken
    assert bool(found) is bool(complaint)
    assert complaint is None or complaint in [line.partition(",")[0] for line in found]


def test_who_stays_away_gets_one_and_who_returns_none() -> None:
    verdict = judge([*ANN, *BOB], [follow_up()], after_ms=AFTER_MS, late_max_ms=LATE_MS, now_ms=NOW_MS)
    assert (verdict.due_users, verdict.delivered_users, verdict.late_ms, verdict.broken) == (
        {"ann"},
        {"ann"},
        [19],
        [],
    )
