"""The demo's result: it must find every kind of difference between truth and events."""

import pytest

from presence.demo.comparison import Action, DemoClient, OfflineBounds, TimelineEvent, compare

BOUNDS = OfflineBounds(idle_timeout=10.0, tick=1.0, grace=5.0)


def client(action: Action) -> DemoClient:
    return DemoClient("ann", action, logged_in=True, last_act=100.0, done=action is not Action.STAYS_ALIVE)


def online(uid: str = "ann") -> TimelineEvent:
    return TimelineEvent(uid, "online", 1, 90_000)


def offline(code: int, at: float) -> TimelineEvent:
    return TimelineEvent("ann", "offline", code, round(at * 1000))


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (Action.STAYS_ALIVE, [online()]),
        (Action.FALLS_SILENT, [online(), offline(201, 110.4)]),
        (Action.CLOSES, [online(), offline(200, 105.2)]),
        (Action.LOGS_OUT, [online(), offline(100, 100.01)]),
    ],
)
def test_true_events_agree(action: Action, events: list[TimelineEvent]) -> None:
    result = compare([client(action)], events, BOUNDS)
    assert result.differences == []
    assert sum(row.clients for row in result.rows) == 1


@pytest.mark.parametrize(
    ("action", "events", "words"),
    [
        (Action.STAYS_ALIVE, [online(), offline(201, 110.4)], "reported offline"),
        (Action.STAYS_ALIVE, [], "0 online events"),
        (Action.STAYS_ALIVE, [online(), online()], "2 online events"),
        (Action.FALLS_SILENT, [online()], "0 offline events"),
        (Action.FALLS_SILENT, [online(), offline(201, 110.4), offline(201, 110.4)], "2 offline events"),
        (Action.FALLS_SILENT, [online(), offline(201, 109.9)], "reported after 9.900 s"),
        (Action.FALLS_SILENT, [online(), offline(201, 111.6)], "reported after 11.600 s"),
        (Action.FALLS_SILENT, [online(), offline(200, 110.4)], "code 200"),
        (Action.CLOSES, [online(), offline(200, 104.9)], "reported after 4.900 s"),
        (Action.LOGS_OUT, [online(), offline(100, 100.7)], "reported after 0.700 s"),
        (Action.STAYS_ALIVE, [online(), online("bob")], "bob is not a client"),
    ],
)
def test_every_difference_is_named(action: Action, events: list[TimelineEvent], words: str) -> None:
    (difference,) = compare([client(action)], events, BOUNDS).differences
    assert words in difference


def test_a_failed_login_is_named() -> None:
    refused = DemoClient("ann", Action.STAYS_ALIVE)
    assert compare([refused], [], BOUNDS).differences == ["ann could not log in"]
