"""Two accounts of who is online, and the last events beside the records."""

from loadtest.checker.comparison import Left, differences, last_events

ON, OFF = Left("ann", "online", "1-0", ""), Left("ann", "offline", "2-0", "1-0")


def test_accounts_that_agree_differ_in_nothing() -> None:
    assert differences("both", {("ann", ""): "s1"}, {("ann", ""): "s1"}) == []


def test_a_session_that_one_account_lacks_is_named() -> None:
    (broken,) = differences("both", {("ann", ""): "s1"}, {})
    assert broken.rule == "converged"
    assert "ann" in broken.text


def test_events_that_end_as_the_records_do_are_right() -> None:
    assert last_events([ON], {"ann"}) == []
    assert last_events([ON, OFF], set()) == []


def test_a_user_who_is_online_without_an_event_is_found() -> None:
    assert [each.rule for each in last_events([ON, OFF], {"ann"})] == ["converged"]


def test_events_that_do_not_alternate_are_found() -> None:
    assert [each.rule for each in last_events([ON, ON], {"ann"})] == ["doubled"]
    assert [each.rule for each in last_events([OFF], set())] == ["doubled"]
