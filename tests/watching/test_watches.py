"""Who watches whom."""

from presence.watching.watches import Watches
from tests.watching.fakes import session

ANN, _ = session("ann")
BOB, _ = session("bob")


def test_a_watch_is_found_from_both_sides() -> None:
    watches = Watches()
    watches.add(ANN, ["x", "y"], 0)
    watches.add(BOB, ["y"], 0)
    assert watches.of(ANN) == {"x", "y"}
    assert watches.watchers("y", 1) == [ANN, BOB]
    assert (len(watches), watches.sessions) == (3, 2)


def test_who_was_answered_after_a_change_is_not_told_of_it() -> None:
    watches = Watches()
    watches.add(ANN, ["x"], 6)
    watches.add(BOB, ["x"], 7)
    assert watches.watchers("x", 7) == [ANN]
    assert not watches.is_due(BOB, "x", 7)
    assert watches.is_due(BOB, "x", 8)


def test_who_is_answered_again_is_told_of_later_changes_only() -> None:
    watches = Watches()
    watches.add(ANN, ["x"], 1)
    watches.add(ANN, ["x"], 5)
    assert watches.watchers("x", 5) == []
    assert len(watches) == 1


def test_removing_tells_whom_nobody_watches_any_more() -> None:
    watches = Watches()
    watches.add(ANN, ["x", "y", "z"], 0)
    watches.add(BOB, ["y"], 0)
    assert watches.remove(ANN, ["x", "y", "stranger"]) == ["x"]
    assert watches.of(ANN) == {"z"}
    assert watches.is_watched("y")


def test_whoever_leaves_watches_nobody() -> None:
    watches = Watches()
    watches.add(ANN, ["x", "y"], 0)
    assert sorted(watches.remove(ANN)) == ["x", "y"]
    assert (len(watches), watches.sessions) == (0, 0)
    assert watches.remove(ANN) == []


def test_a_watch_of_nobody_leaves_no_trace() -> None:
    watches = Watches()
    watches.add(ANN, [], 0)
    assert watches.sessions == 0
