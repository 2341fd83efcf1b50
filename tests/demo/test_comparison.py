"""The demo's result: it must find every kind of difference between truth and events."""

import pytest

from presence.demo.comparison import DemoAction, DemoClient, OfflineBounds, TimelineEvent, compare

BOUNDS = OfflineBounds(idle_timeout=10.0, tick=1.0, grace=5.0)


def client(action: DemoAction) -> DemoClient:
    return DemoClient(
        "ann", action, logged_in=True, last_act=100.0, done=action is not DemoAction.STAYS_ALIVE
    )


def online(uid: str = "ann") -> TimelineEvent:
    return TimelineEvent(uid, "online", 1, 90_000)


def offline(code: int, at: float) -> TimelineEvent:
    return TimelineEvent("ann", "offline", code, round(at * 1000))


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (DemoAction.STAYS_ALIVE, [online()]),
        (DemoAction.FALLS_SILENT, [online(), offline(201, 110.4)]),
        (DemoAction.CLOSES, [online(), offline(200, 105.2)]),
        (DemoAction.LOGS_OUT, [online(), offline(100, 100.01)]),
    ],
)
def test_true_events_agree(action: DemoAction, events: list[TimelineEvent]) -> None:
    result = compare([client(action)], events, BOUNDS)
    assert result.differences == []
    assert sum(row.clients for row in result.rows) == 1


@pytest.mark.parametrize(
    ("action", "events", "words"),
    [
        (DemoAction.STAYS_ALIVE, [online(), offline(201, 110.4)], "reported offline"),
        (DemoAction.STAYS_ALIVE, [], "0 online events"),
        (DemoAction.STAYS_ALIVE, [online(), online()], "2 online events"),
        (DemoAction.FALLS_SILENT, [online()], "0 offline events"),
        (DemoAction.FALLS_SILENT, [online(), offline(201, 110.4), offline(201, 110.4)], "2 offline events"),
        (DemoAction.FALLS_SILENT, [online(), offline(201, 109.9)], "reported after 9.900 s"),
        (DemoAction.FALLS_SILENT, [online(), offline(201, 111.6)], "reported after 11.600 s"),
        (DemoAction.FALLS_SILENT, [online(), offline(200, 110.4)], "code 200"),
        (DemoAction.CLOSES, [online(), offline(200, 104.9)], "reported after 4.900 s"),
        (DemoAction.LOGS_OUT, [online(), offline(100, 100.7)], "reported after 0.700 s"),
        (DemoAction.STAYS_ALIVE, [online(), online("bob")], "bob is not a client"),
    ],
)
def test_every_difference_is_named(action: DemoAction, events: list[TimelineEvent], words: str) -> None:
    (difference,) = compare([client(action)], events, BOUNDS).differences
    assert words in difference


def test_a_failed_login_is_named() -> None:
    refused = DemoClient("ann", DemoAction.STAYS_ALIVE)
    assert compare([refused], [], BOUNDS).differences == ["ann could not log in"]
