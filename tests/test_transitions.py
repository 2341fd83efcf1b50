"""Counting what Redis told."""

from presence.transitions import Told, Transitions


def test_counts_add_up_by_type_and_reason() -> None:
    transitions = Transitions()
    transitions.note([Told("online", 1, 2), Told("offline", 201, 1)])
    transitions.note([Told("online", 1, 3), Told("online", 2, 1)])
    assert transitions.report() == {
        "online": {"login": 5, "returned": 1},
        "offline": {"idle_timeout": 1},
        "away": {},
        "update": {},
        "gap": {},
    }


def test_a_gap_is_its_own_reason() -> None:
    transitions = Transitions()
    transitions.note([Told("gap", 0, 1)])
    assert transitions.report()["gap"] == {"gap": 1}


def test_what_a_later_version_writes_is_counted_as_it_is_called() -> None:
    transitions = Transitions()
    transitions.note([Told("offline", 999, 1), Told("sleeping", 3, 1)])
    assert transitions.report()["offline"] == {"999": 1}
    assert transitions.report()["sleeping"] == {"away": 1}
