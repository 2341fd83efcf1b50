"""Whether the judge of flapping sees what is wrong."""

from typing import Any

import pytest

from tests.system.channel.entries import ChannelEntry, entry_of
from tests.system.channel.flapping import FlappingClient, FlappingPlan, judge

CALM = FlappingClient(100_000, flapped=False)
WILD = FlappingClient(100_000, flapped=True)


def entry(at_ms: int, type: str, code: int, **fields: Any) -> ChannelEntry:
    given = {"type": type, "uid": "ann", "code": code, "reason": "why", "at_ms": at_ms, "since_ms": at_ms}
    given |= {"last_seen_ms": at_ms, **fields}
    return entry_of(f"{at_ms + 20}-0", {name: str(value) for name, value in given.items()})


CAME = entry(1000, "online", 1)
AGAIN = entry(121_000, "online", 1)


def went(at_ms: int, code: int = 200, since_id: str = "1020-0", **fields: Any) -> ChannelEntry:
    return entry(at_ms, "offline", code, since_id=since_id, **fields)


@pytest.mark.parametrize(
    ("client", "events", "complaint"),
    [
        (CALM, [CAME, went(105_400), AGAIN], ""),
        (WILD, [CAME, went(110_100, grace_ms=10_000), AGAIN], ""),
        (WILD, [CAME, went(130_500, grace_ms=40_000), AGAIN], ""),  # its idle time ends it
        (CALM, [CAME, went(50_000), AGAIN, went(105_400)], "event while the client returned"),
        (WILD, [CAME, went(50_000), entry(51_000, "online", 1)], "event while the client returned"),
        (CALM, [], "not one offline and one online"),
        (CALM, [CAME], "not one offline and one online"),
        (CALM, [CAME, went(105_400)], "not one offline and one online"),
        (CALM, [CAME, went(105_400), AGAIN, went(122_000)], "not one offline and one online"),
        (CALM, [CAME, went(105_400, 201), AGAIN], "another reason"),
        (CALM, [CAME, went(105_400, since_id="7-0"), AGAIN], "since_id"),
        (CALM, [CAME, went(104_900), AGAIN], "offline within the grace"),
        (CALM, [CAME, went(107_100), AGAIN], "offline later than promised"),
        (CALM, [CAME, went(110_000, grace_ms=10_000), AGAIN], "a longer grace for the calm"),
        (WILD, [CAME, went(105_400), AGAIN], "a longer grace for the calm, or none"),
        (WILD, [CAME, went(108_000, grace_ms=10_000), AGAIN], "offline within the grace"),
        (WILD, [CAME, went(130_500, grace_ms=70_000), AGAIN], "out of its bounds"),
        (WILD, [CAME, went(105_000, grace_ms=5000), AGAIN], "out of its bounds"),
    ],
)
def test_each_fault_has_a_name(client: FlappingClient, events: list[ChannelEntry], complaint: str) -> None:
    wrong = judge({"ann": client}, {"ann": events}, FlappingPlan())[0].counts
    assert bool(wrong) is bool(complaint)
    assert all(complaint in each for each in wrong)
