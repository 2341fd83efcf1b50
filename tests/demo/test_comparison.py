"""The demo's verdict: it must find every kind of difference between truth and events."""

import pytest

from presence.demo.comparison import Action, DemoClient, OfflineBounds, TimelineEvent, compare

BOUNDS = OfflineBounds(idle_timeout=10.0, tick=1.0, grace=5.0)


def client(deed: Action) -> DemoClient:
    return DemoClient("ann", deed, logged_in=True, last_act=100.0, done=deed is not Action.BEATS)


def online(uid: str = "ann") -> TimelineEvent:
    return TimelineEvent(uid, "online", 1, 90_000)


def offline(code: int, at: float) -> TimelineEvent:
    return TimelineEvent("ann", "offline", code, round(at * 1000))


@pytest.mark.parametrize(
    ("deed", "events"),
    [
        (Action.BEATS, [online()]),
        (Action.FALLS_SILENT, [online(), offline(201, 110.4)]),
        (Action.CLOSES, [online(), offline(200, 105.2)]),
        (Action.LOGS_OUT, [online(), offline(100, 100.01)]),
    ],
)
def test_what_is_told_as_it_was_agrees(deed: Action, events: list[TimelineEvent]) -> None:
    verdict = compare([client(deed)], events, BOUNDS)
    assert verdict.differences == []
    assert sum(row.clients for row in verdict.rows) == 1


@pytest.mark.parametrize(
    ("deed", "events", "words"),
    [
        (Action.BEATS, [online(), offline(201, 110.4)], "told offline"),
        (Action.BEATS, [], "0 online events"),
        (Action.BEATS, [online(), online()], "2 online events"),
        (Action.FALLS_SILENT, [online()], "0 offline events"),
        (Action.FALLS_SILENT, [online(), offline(201, 110.4), offline(201, 110.4)], "2 offline events"),
        (Action.FALLS_SILENT, [online(), offline(201, 109.9)], "told after 9.900 s"),
        (Action.FALLS_SILENT, [online(), offline(201, 111.6)], "told after 11.600 s"),
        (Action.FALLS_SILENT, [online(), offline(200, 110.4)], "code 200"),
        (Action.CLOSES, [online(), offline(200, 104.9)], "told after 4.900 s"),
        (Action.LOGS_OUT, [online(), offline(100, 100.7)], "told after 0.700 s"),
        (Action.BEATS, [online(), online("bob")], "bob never was here"),
    ],
)
def test_every_difference_is_named(deed: Action, events: list[TimelineEvent], words: str) -> None:
    (difference,) = compare([client(deed)], events, BOUNDS).differences
    assert words in difference


def test_a_login_that_failed_is_named() -> None:
    refused = DemoClient("ann", Action.BEATS)
    assert compare([refused], [], BOUNDS).differences == ["ann could not log in"]
