"""Counts of the events that Redis has written."""

from presence.outbox.event_counts import EventCount, Transitions


def test_counts_add_up_by_type_and_reason_including_unknown_codes() -> None:
    transitions = Transitions()
    transitions.count_events(
        [EventCount("online", 1, 2), EventCount("offline", 201, 1), EventCount("gap", 0, 1)]
    )
    transitions.count_events(
        [
            EventCount("online", 1, 3),
            EventCount("online", 2, 1),
            EventCount("offline", 999, 1),
            EventCount("sleeping", 3, 1),
        ]
    )
    assert transitions.report() == {
        "online": {"login": 5, "returned": 1},
        "offline": {"idle_timeout": 1, "999": 1},
        "away": {},
        "update": {},
        "device": {},
        "rooms": {},
        "gap": {"gap": 1},
        "sleeping": {"away": 1},
    }
