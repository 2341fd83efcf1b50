"""The rule `shown`: each change of how a user shows himself is one, and of the period that lasts."""

import pytest

from loadtest.checker.showing import Showing

Fields = dict[str, str]
ON: Fields = {"type": "online", "since_ms": "1", "at_ms": "1"}
AWAY: Fields = {
    **{"type": "away", "since_id": "1-0", "at_ms": "5", "code": "3"},
    **{"status": "away", "status_ms": "5"},
}
SAID: Fields = {
    **{"type": "update", "since_id": "1-0", "at_ms": "7", "code": "5"},
    **{"status": "away", "status_ms": "5", "meta": "x"},
}
BACK: Fields = {**AWAY, "at_ms": "9", "code": "4", "status": "online", "status_ms": "9", "meta": "x"}
OFF: Fields = {"type": "offline", "since_id": "1-0"}


def rules(showing: Showing, *entries: Fields) -> list[str]:
    """What is broken by these entries of one user, 1-0, 2-0 and so on."""
    broken = []
    for number, fields in enumerate(entries, 1):
        broken += showing.entry(f"{number}-0", {"uid": "ann", **fields})
    return [each.rule for each in broken]


def test_what_changes_in_order_breaks_nothing() -> None:
    showing = Showing()
    assert rules(showing, ON, AWAY, SAID, BACK) == []
    assert showing.shown["ann"] == ("online", "9", "x", "4-0", "1-0")
    assert rules(showing, OFF) == []
    assert showing.shown == {}


@pytest.mark.parametrize(
    "entries",
    [
        (AWAY,),
        (ON, OFF, AWAY),
        (ON, {**AWAY, "since_id": "0-9"}),
        (ON, AWAY, AWAY),
        (ON, {**AWAY, "code": "4"}),
        (ON, {**AWAY, "status_ms": "4"}),
        (ON, SAID),
        (ON, AWAY, {**SAID, "meta": ""}),
        (ON, AWAY, {**SAID, "status_ms": "7"}),
        ({**ON, "status": "away"}, AWAY),
    ],
)
def test_what_is_no_change_or_of_no_period_is_found(entries: tuple[Fields, ...]) -> None:
    assert rules(Showing(), *entries)[-1:] == ["shown"]


def test_what_redis_forgot_is_forgotten() -> None:
    showing = Showing()
    assert rules(showing, ON, AWAY) == []
    kept = showing.kept()
    showing.entry("3-0", {"uid": "ann", **OFF})
    showing.forgot(kept)
    assert showing.shown["ann"].status == "away"
    showing.forgot(None)
    assert showing.shown == {}
