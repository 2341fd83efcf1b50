"""The rules shared by the simulation and chaos: each fault breaks its rule, and correct events break none."""

import pytest

from loadtest.checker import (
    NO_CLAIM,
    Claim,
    Given,
    Periods,
    Promised,
    RemainingEvent,
    Showing,
    ShownState,
    check_last_events,
    differences,
    is_false_offline,
    is_justified,
)
from presence.protocol import Code

PROMISED = Promised(idle_timeout=5.0, grace=1.0)


@pytest.mark.parametrize(
    ("code", "given", "founded"),
    [
        (Code.IDLE_TIMEOUT, Given(5.0, None, False, False), True),
        (Code.IDLE_TIMEOUT, Given(4.9, None, False, False), False),
        (Code.CLOSED, Given(1.5, 1.0, False, False), True),
        (Code.CLOSED, Given(1.5, 0.5, False, False), False),
        (Code.CLOSED, Given(5.0, None, False, False), True),
        (Code.LOGOUT, Given(0.1, None, True, False), True),
        (Code.LOGOUT, Given(9.0, 9.0, False, False), False),
        (Code.REPLACED, Given(0.1, None, False, True), True),
        (Code.REPLACED, Given(0.1, None, False, False), False),
        (Code.KICKED, Given(9.0, 9.0, True, True), False),
    ],
)
def test_an_end_needs_a_reason_from_the_client(code: Code, given: Given, founded: bool) -> None:
    assert is_justified(code, given, PROMISED) is founded


@pytest.mark.parametrize(
    ("claim", "false"),
    [
        (Claim(1.0, 1.5, 9.0), True),
        (Claim(2.5, 2.6, 9.0), False),  # it logged in after the decision
        (Claim(1.0, 4.0, 9.0), False),  # Redis need not know of it yet
        (Claim(1.0, 1.5, 2.0), False),  # it had ended by then
        (NO_CLAIM, False),
    ],
)
def test_an_offline_event_is_false_while_a_known_session_lives(claim: Claim, false: bool) -> None:
    assert is_false_offline(claim, decided=2.0, reported=3.0) is false


CAME, WENT = RemainingEvent("ann", "online", "1-0", ""), RemainingEvent("ann", "offline", "2-0", "1-0")


@pytest.mark.parametrize(
    ("entries", "online", "rules"),
    [
        ([CAME], {"ann"}, []),
        ([CAME, WENT], set(), []),
        ([CAME, WENT], {"ann"}, ["converged"]),
        ([CAME, CAME], {"ann"}, ["doubled"]),
        ([WENT], set(), ["doubled"]),
    ],
)
def test_live_sessions_match_the_records(
    entries: list[RemainingEvent], online: set[str], rules: list[str]
) -> None:
    assert [each.rule for each in check_last_events(entries, online)] == rules


def test_a_session_missing_on_one_side_is_named() -> None:
    assert differences("both", {("ann", ""): "s1"}, {("ann", ""): "s1"}) == []
    (broken,) = differences("both", {("ann", ""): "s1"}, {})
    assert broken.rule == "converged"
    assert "ann" in broken.text


Event = tuple[str, str, str, str]  # type, session, id, since_id; the id begins with its time
ON: Event = ("online", "s1", "1-0", "")
OFF: Event = ("offline", "s1", "2-0", "1-0")


def broken_by(periods: Periods, *events: Event) -> list[str]:
    """Return the rules that events of one user break."""
    broken = []
    for kind, session, entry_id, since_id in events:
        at = float(entry_id.partition("-")[0])
        broken += periods.check_order("ann", entry_id)
        if kind == "online":
            broken += periods.user_online("ann", session, entry_id, at)
        else:
            broken += periods.user_offline("ann", session, since_id)
            periods.session_ended(session, at)
    return [each.rule for each in broken]


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([ON, OFF, ("online", "s2", "3-0", "")], []),
        ([ON, ("online", "s2", "2-0", "")], ["doubled"]),
        ([ON, OFF, ("offline", "s1", "3-0", "1-0")], ["doubled"]),
        ([ON, ("offline", "s1", "2-0", "0-5")], ["doubled"]),  # it names another period
        ([ON, OFF, ("online", "s1", "3-0", "")], ["risen"]),
        ([("online", "s1", "2-0", ""), ("offline", "s1", "1-9", "2-0")], ["disorder"]),
    ],
)
def test_periods_alternate_in_order_and_sessions_end_once(events: list[Event], rules: list[str]) -> None:
    assert broken_by(Periods(), *events) == rules


def test_redis_may_lose_its_data_or_go_back_to_an_earlier_state() -> None:
    periods = Periods()
    broken_by(periods, ON)
    kept = periods.snapshot()
    broken_by(periods, OFF)
    periods.data_lost(2.5, kept)
    assert broken_by(periods, ("offline", "s1", "3-0", "1-0")) == []
    periods.data_lost(3.5, None)
    assert broken_by(periods, ("online", "s1", "4-0", "")) == []


Fields = dict[str, str]
IN: Fields = {"type": "online", "device": "", "since_ms": "1", "at_ms": "1"}
AWAY: Fields = {
    **{"type": "away", "since_id": "1-0", "at_ms": "5", "code": "3"},
    **{"status": "away", "status_ms": "5"},
}
SAID: Fields = {
    **{"type": "update", "since_id": "1-0", "at_ms": "7", "code": "5"},
    **{"status": "away", "status_ms": "5", "meta": "x"},
}
BACK: Fields = {**AWAY, "at_ms": "9", "code": "4", "status": "online", "status_ms": "9", "meta": "x"}
OUT: Fields = {"type": "offline", "since_id": "1-0", "at_ms": "9", "code": "0", "last_seen_ms": "8"}
HIDDEN: Fields = {
    **{"type": "update", "since_id": "1-0", "at_ms": "5", "code": "5"},
    **{"status_ms": "5", "invisible": "1", "public": "100 * 5 5"},
}
HIDDEN_AGAIN: Fields = {
    "type": "online",
    "device": "",
    "since_ms": "9",
    "at_ms": "9",
    "invisible": "1",
    "public": "0 2-0 9 8",
}


JOINED: Fields = {
    **{"type": "device", "since_id": "1-0", "at_ms": "5", "code": "1", "device": "tv"},
    "devices": '[{"device":""},{"device":"tv"}]',
}
LEFT: Fields = {**JOINED, "code": "200", "devices": '[{"device":""}]'}


def shown_by(showing: Showing, *entries: Fields) -> list[str]:
    """Return the rules broken by these entries of one user, 1-0, 2-0 and so on."""
    broken = []
    for number, fields in enumerate(entries, 1):
        broken += showing.check_entry(f"{number}-0", {"uid": "ann", **fields})
    return [each.rule for each in broken]


def test_states_of_a_user_are_followed_and_forgotten_with_redis() -> None:
    showing = Showing()
    assert shown_by(showing, IN, AWAY, SAID, BACK) == []
    wanted = ShownState("online", "9", ("x", ""), "4-0", "1-0", frozenset({""}))
    assert showing.shown["ann"] == wanted
    kept = showing.snapshot()
    assert shown_by(showing, OUT) == []
    assert showing.shown == {}
    showing.data_lost(kept)
    assert showing.shown["ann"].status == "online"
    showing.data_lost(None)
    assert showing.shown == {}


@pytest.mark.parametrize(
    "entries",
    [
        (AWAY,),
        (IN, OUT, AWAY),
        (IN, {**AWAY, "since_id": "0-9"}),
        (IN, AWAY, AWAY),
        (IN, {**AWAY, "code": "4"}),
        (IN, {**AWAY, "status_ms": "4"}),
        (IN, SAID),
        (IN, AWAY, {**SAID, "meta": ""}),
        (IN, AWAY, {**SAID, "status_ms": "7"}),
        ({**IN, "status": "away"}, AWAY),
        (JOINED,),
        (IN, JOINED, JOINED),
        (IN, LEFT),
        (IN, {**JOINED, "devices": "[]"}),
        (IN, {**JOINED, "since_id": "0-9"}),
    ],
)
def test_an_entry_without_a_change_or_a_period_is_found(entries: tuple[Fields, ...]) -> None:
    assert shown_by(Showing(), *entries)[-1:] == ["shown"]


@pytest.mark.parametrize(
    ("entries", "is_right"),
    [
        ((IN, HIDDEN), True),
        ((IN, {**HIDDEN, "public": "100 * 4 4"}), False),
        ((IN, OUT, HIDDEN_AGAIN), True),
        ((IN, OUT, {**HIDDEN_AGAIN, "public": "0 2-0 9 9"}), False),
        ((IN, OUT, {**HIDDEN_AGAIN, "public": ""}), False),
    ],
)
def test_what_is_shown_of_an_invisible_user_is_checked(entries: tuple[Fields, ...], is_right: bool) -> None:
    assert shown_by(Showing(), *entries) == ([] if is_right else ["shown"])


def test_devices_come_and_go() -> None:
    showing = Showing()
    assert shown_by(showing, IN, JOINED, AWAY, LEFT) == []
    assert showing.shown["ann"].devices == {""}
