"""Whether the judge of flapping sees what is wrong."""

from typing import Any

import pytest

from loadtest.channel.entries import Entry, entry_of
from loadtest.channel.flapping_judge import Life, Promise, judge

PROMISE = Promise(grace=5000, grace_max=60_000, idle_timeout=30_000, tick=1000)
CALM = Life(0, 90_000, 100_000, 120_000, flapped=False)
WILD = Life(20, 99_000, 100_000, 140_000, flapped=True)


def entry(at_ms: int, type: str, code: int, **fields: Any) -> Entry:
    given = {"type": type, "uid": "ann", "code": code, "reason": "why", "at_ms": at_ms, "since_ms": at_ms}
    given |= {"last_seen_ms": at_ms, **fields}
    return entry_of(f"{at_ms + 20}-0", {name: str(value) for name, value in given.items()})


CAME = entry(1000, "online", 1)
AGAIN = entry(121_000, "online", 1)


def went(at_ms: int, code: int = 200, since_id: str = "1020-0", **fields: Any) -> Entry:
    return entry(at_ms, "offline", code, since_id=since_id, **fields)


def wrong(life: Life, *told: Entry) -> list[str]:
    return [*judge({"ann": life}, {"ann": told}, PROMISE)[0].wrong]


def test_a_calm_client_who_stays_away_is_told_once() -> None:
    assert wrong(CALM, CAME, went(105_400), AGAIN) == []


def test_a_flapping_client_has_a_longer_grace_that_ends_with_its_idle_time() -> None:
    verdict, graces = judge({"ann": WILD}, {"ann": [CAME, went(129_500, grace_ms=40_000), AGAIN]}, PROMISE)
    assert (verdict.broken, graces) == ([], [40_000.0])
    assert wrong(WILD, CAME, went(110_100, grace_ms=10_000), AGAIN) == []


@pytest.mark.parametrize(
    ("life", "told", "complaint"),
    [
        (CALM, [CAME, went(50_000), AGAIN, went(105_400)], "event while the client returned"),
        (WILD, [CAME, went(50_000), entry(51_000, "online", 1)], "event while the client returned"),
        (CALM, [CAME], "no offline event"),
        (CALM, [CAME, went(105_400)], "no online event of the return"),
        (CALM, [CAME, went(105_400), AGAIN, went(122_000)], "more than one offline"),
        (CALM, [CAME, went(105_400, 201), AGAIN], "another reason"),
        (CALM, [CAME, went(105_400, since_id="7-0"), AGAIN], "since_id"),
        (CALM, [CAME, went(104_900), AGAIN], "offline within the grace"),
        (CALM, [CAME, went(107_100), AGAIN], "offline later than promised"),
        (CALM, [CAME, went(110_000, grace_ms=10_000), AGAIN], "a calm client's event names"),
        (WILD, [CAME, went(105_400), AGAIN], "names no longer grace"),
        (WILD, [CAME, went(108_000, grace_ms=10_000), AGAIN], "offline within the grace"),
        (WILD, [CAME, went(129_500, grace_ms=70_000), AGAIN], "out of its bounds"),
        (WILD, [CAME, went(105_000, grace_ms=5000), AGAIN], "out of its bounds"),
    ],
)
def test_each_fault_has_a_name(life: Life, told: list[Entry], complaint: str) -> None:
    assert any(complaint in each for each in wrong(life, *told))


def test_nothing_told_of_a_client_is_a_fault() -> None:
    assert [*judge({"ann": CALM}, {}, PROMISE)[0].wrong] == ["no offline event of the long absence"]
