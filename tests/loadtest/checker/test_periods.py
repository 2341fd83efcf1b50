"""The events of users: alternation, names of periods, ends that stay ends, and what Redis may forget."""

from loadtest.checker.periods import Periods


def rules(periods: Periods, *steps: tuple[str, str, str, str, float]) -> list[str]:
    """Return the rules that steps of (type, session, id, since_id, moment) break, for one user."""
    broken = []
    for kind, session, entry_id, since_id, at in steps:
        broken += periods.in_order("ann", entry_id)
        if kind == "online":
            broken += periods.came("ann", session, entry_id, at)
        else:
            broken += periods.went("ann", session, since_id)
            periods.ended(session, at)
    return [each.rule for each in broken]


ON = ("online", "s1", "1-0", "", 1.0)
OFF = ("offline", "s1", "2-0", "1-0", 2.0)


def test_an_online_period_breaks_nothing() -> None:
    assert rules(Periods(), ON, OFF, ("online", "s2", "3-0", "", 3.0)) == []


def test_two_online_events_are_doubled() -> None:
    assert rules(Periods(), ON, ("online", "s2", "2-0", "", 2.0)) == ["doubled"]


def test_an_offline_event_of_a_user_who_is_offline_is_doubled() -> None:
    assert rules(Periods(), ON, OFF, ("offline", "s1", "3-0", "1-0", 3.0)) == ["doubled"]


def test_an_offline_event_that_names_another_period_is_doubled() -> None:
    assert rules(Periods(), ON, ("offline", "s1", "2-0", "0-5", 2.0)) == ["doubled"]


def test_a_session_that_has_ended_does_not_rise() -> None:
    assert rules(Periods(), ON, OFF, ("online", "s1", "3-0", "", 3.0)) == ["risen"]


def test_an_older_id_after_a_newer_one_is_disorder() -> None:
    assert rules(Periods(), ("online", "s1", "2-0", "", 1.0), ("offline", "s1", "1-9", "2-0", 2.0)) == [
        "disorder"
    ]


def test_what_redis_forgets_is_forgotten() -> None:
    periods = Periods()
    assert rules(periods, ON, OFF) == []
    periods.forgot(2.5, None)
    assert rules(periods, ("online", "s1", "3-0", "", 3.0)) == []


def test_redis_can_go_back_to_what_it_had() -> None:
    periods = Periods()
    rules(periods, ON)
    kept = periods.kept()
    rules(periods, OFF)
    periods.forgot(2.5, kept)
    assert rules(periods, ("offline", "s1", "3-0", "1-0", 3.0)) == []
