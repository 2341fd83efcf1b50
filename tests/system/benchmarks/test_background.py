"""The bench of phones in the background, small: quiet ones wake for their keepalives, and miss nothing."""

from dataclasses import replace

from benchmarks.background import HABITS, BackgroundPlan, BackgroundResult, play, table

PLAN = BackgroundPlan(phones=60, watched=20)


def test_a_quiet_phone_wakes_for_its_keepalives_and_sees_every_user_as_it_is() -> None:
    _often, seldom, quiet = results = [play(PLAN, habit) for habit in HABITS]
    assert all(each.wrong == 0 and each.checked > 0 for each in results)
    assert quiet.keepalives == seldom.keepalives
    assert quiet.wake_ups <= quiet.keepalives < seldom.wake_ups
    assert quiet.writes <= 2 * quiet.keepalives
    print(table(results))


def test_wrong_views_are_in_the_table() -> None:
    result = BackgroundResult(HABITS[0], 1.0, 2.0, 3.0, 4.0, wrong=5, checked=6)
    assert "5 of 6" in table([result])
    assert "0 of 6" in table([replace(result, wrong=0)])
