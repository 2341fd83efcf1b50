"""Which of two logins of a device stays: every cell of the table at the head of apply.lua."""

import json
import time
from dataclasses import replace
from typing import Final, NamedTuple

import pytest

from presence.core.changes import Change
from presence.outbox.replies import Superseded
from presence.store.keys import Keys
from tests.store.driving import Hand, a_change, end, hold, login, online_sessions, probed, record
from tests.store.servers import Server

KEYS: Final = Keys()


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


class Times(NamedTuple):
    """When two logins were, in seconds."""

    present_s: float  # ago, by its latest possible time: the login on record
    waited_s: float  # of these, before its call reached Redis
    late_s: float  # by so much it may have been earlier
    age_s: float  # of the new login, when its call was sent
    underway_s: float | None  # its call; None: the node did not know the shard's clock


TIMES: Final = {
    "earlier": Times(1, 0, 0, 20, 0),
    "unknown, and before it at the earliest": Times(1, 0, 0, 5.5, 0),
    "unknown, and after it at the earliest": Times(1, 0, 20, 5.5, 0),
    "unknown, and of this moment": Times(0, 0, 0, 0, None),
    "unknown, but far after it": Times(60, 10, 0, 3, None),
    "later": Times(3, 0, 0, 1, 0),
    "later, and far after it": Times(60, 0, 0, 3, 0),
}

# Operation, order of its login to the one on record, and what happens to it and to another node's session.
CELLS: Final = """
login    | earlier                                | yields for good
login    | unknown, and before it at the earliest | yields, may return
login    | unknown, and after it at the earliest  | wins, the other may return
login    | unknown, and of this moment            | wins, the other may return
login    | later                                  | wins for good
register | earlier                                | yields, may return
register | unknown, and after it at the earliest  | yields, may return
register | unknown, but far after it              | yields, may return
register | later                                  | yields, may return
register | later, and far after it                | yields, may return
reclaim  | earlier                                | yields, may return
reclaim  | unknown, and after it at the earliest  | yields, may return
reclaim  | unknown, but far after it              | wins, the other may return
reclaim  | later                                  | yields, may return
reclaim  | later, and far after it                | wins for good
"""
ROWS: Final = [tuple(cell.strip() for cell in line.split("|")) for line in CELLS.strip().splitlines()]


def send(hand: Hand, underway_s: float | None, *changes: Change) -> tuple[Superseded, ...]:
    """Apply changes by a call that was underway for a time, as if Redis had been stopped.

    `underway_s`: None if the node does not know the shard's clock.
    """
    batch = hand.batch(changes, hand.n + 1)
    hand.n += 1
    sent_ms = 0 if underway_s is None else int((time.time() - underway_s) * 1000)
    return hand.send(replace(batch, sent_ms=sent_ms)).superseded


def put_on_record(hand: Hand, server: Server, times: Times) -> None:
    """Let a session of the hand's node be on record as one that logged in at that time."""
    hand.apply(login("u", "present"))
    written = record(server.client, "u")
    session = written["sessions"][""]
    session["login_ms"] = int((time.time() - times.present_s) * 1000)
    session["arrived_ms"] = session["login_ms"] + int(times.waited_s * 1000)
    if times.late_s:
        session["late_ms"] = int(times.late_s * 1000)
    server.client.hset(KEYS.online(0), "u", json.dumps(written))


def outcome(a: Hand, b: Hand, server: Server, operation: str, times: Times) -> str:
    """Apply the operation by `a`; return what happened to it and to the session of `b`."""
    superseded = send(a, times.underway_s, a_change(f"{operation} u new age={times.age_s}"))
    notices = probed(b.store, b.node).inbox
    if superseded:
        assert (online_sessions(server.client), notices) == ({("u", "", "present")}, ())
        return "yields, may return" if superseded[0].return_allowed else "yields for good"
    assert online_sessions(server.client) == {("u", "", "new")}
    if not notices:
        return "wins"
    assert [each.session for each in notices] == ["present"]
    return "wins, the other may return" if notices[0].return_allowed else "wins for good"


@pytest.mark.parametrize(("operation", "order", "expected"), ROWS)
def test_two_nodes(a: Hand, b: Hand, server: Server, operation: str, order: str, expected: str) -> None:
    put_on_record(b, server, TIMES[order])
    assert outcome(a, b, server, operation, TIMES[order]) == expected


@pytest.mark.parametrize("operation", ["login", "register", "reclaim"])
@pytest.mark.parametrize("order", ["earlier", "unknown, and before it at the earliest", "later"])
def test_one_node(a: Hand, server: Server, operation: str, order: str) -> None:
    put_on_record(a, server, TIMES[order])
    assert outcome(a, a, server, operation, TIMES[order]) == "wins"


@pytest.mark.parametrize("operation", ["login", "register", "reclaim"])
@pytest.mark.parametrize("order", ["earlier", "unknown, and before it at the earliest", "later"])
def test_a_fenced_node(a: Hand, b: Hand, server: Server, operation: str, order: str) -> None:
    put_on_record(b, server, TIMES[order])
    a.fence("b")
    assert outcome(a, b, server, operation, TIMES[order]) == "wins"


# Order of a pending login to the end of the user's last session: its age at the sending of its call, how long
# that was underway, and the age of the end.
PENDING: Final = {"earlier": (5, 0, 1), "unknown": (0, 3, 1), "later": (0, 0, 3)}


@pytest.mark.parametrize(
    ("whose", "order", "takes_the_record"),
    [
        ("another node's", "earlier", True),
        ("another node's", "unknown", True),
        ("another node's", "later", False),
        ("a fenced node's", "earlier", True),
        ("a fenced node's", "unknown", True),
        ("a fenced node's", "later", False),
        ("its own", "earlier", False),
        ("its own", "unknown", False),
    ],
)
def test_a_pending_login(
    a: Hand, b: Hand, server: Server, whose: str, order: str, *, takes_the_record: bool
) -> None:
    age_s, underway_s, ended_s = PENDING[order]
    b.apply(login("u", "present", age_s=9))
    holder = b if whose == "its own" else a
    send(holder, underway_s, hold("u", "new", age_s=age_s))
    if whose == "a fenced node's":
        b.fence("a")
    b.apply(end("u", "present", age_s=ended_s))
    assert online_sessions(server.client) == ({("u", "", "new")} if takes_the_record else set())


# Which times make one of these orders


@pytest.mark.parametrize(
    ("standing_s", "late_s", "displacing_s", "allowed"),
    [(60, 0, 0, False), (2, 0, 0, True), (60, 0, 6, True), (60, 6, 0, True)],
    ids=["both certain", "displaced login is recent", "displacing login is late", "displaced login was late"],
)
def test_the_goodbye_allows_a_return_if_the_order_is_uncertain(
    a: Hand, b: Hand, server: Server, standing_s: float, late_s: float, displacing_s: float, allowed: bool
) -> None:
    a.apply(login("u", "sa"))
    text = record(server.client, "u")
    entry = text["sessions"][""]
    entry["login_ms"] -= int(standing_s * 1000)
    entry["arrived_ms"] = entry["login_ms"] + int(late_s * 1000)
    server.client.hset(KEYS.online(0), "u", json.dumps(text))
    b.apply(login("u", "sb", age_s=displacing_s))
    assert [d.return_allowed for d in probed(a.store, "a").inbox] == [allowed]


@pytest.mark.parametrize(
    ("reached_ms", "allowed"),
    [(40, False), (20, True), (0, True), (10**6, True)],
    ids=["certainly later", "perhaps simultaneous", "unknown", "a clock that was set back"],
)
def test_the_order_is_certain_if_the_clock_had_reached_the_later_login(
    a: Hand, b: Hand, server: Server, reached_ms: int, allowed: bool
) -> None:
    a.apply(login("u", "sa"))
    login_ms = record(server.client, "u")["sessions"][""]["login_ms"]
    time.sleep(0.05)
    batch = b.batch([login("u", "sb", age_s=0.02)], b.n + 1)
    b.send(replace(batch, sent_ms=login_ms + reached_ms if reached_ms else 0))
    assert [d.return_allowed for d in probed(a.store, "a").inbox] == [allowed]


def test_the_order_of_logins_that_both_waited_for_long_is_unsure_by_the_error_of_the_clocks(
    a: Hand, b: Hand, server: Server
) -> None:
    a.apply(login("u", "sa", age_s=40))
    came_ms = record(server.client, "u")["sessions"][""]["login_ms"]
    time.sleep(0.1)
    batch = b.batch([login("u", "sb", age_s=40)], b.n + 1)
    b.send(replace(batch, sent_ms=came_ms + 40_050))
    assert [d.return_allowed for d in probed(a.store, "a").inbox] == [True]


def test_a_login_whose_call_came_late_does_not_win_over_a_later_one(a: Hand, b: Hand, server: Server) -> None:
    send(a, 60, login("u", "sa"))
    assert send(b, 0, login("u", "sb", age_s=10)) == ()
    assert online_sessions(server.client) == {("u", "", "sb")}
    assert [each.session for each in probed(a.store, "a").inbox] == ["sa"]


def test_a_login_whose_call_came_late_yields_to_a_later_one(a: Hand, b: Hand, server: Server) -> None:
    send(b, 0, login("u", "sb", age_s=10))
    assert [each.session for each in send(a, 60, login("u", "sa"))] == ["sa"]
    assert online_sessions(server.client) == {("u", "", "sb")}
    assert not probed(b.store, "b").inbox


@pytest.mark.parametrize("device", ["", "phone"], ids=["the same device", "another device"])
def test_a_login_that_follows_one_whose_call_came_late_does_not_win_over_a_later_one(
    a: Hand, b: Hand, server: Server, device: str
) -> None:
    send(a, 60, login("u", "s1", device))
    send(a, 0, login("u", "s2", age_s=50))  # on record after s1, whose call made it look younger
    assert send(b, 0, login("u", "sb", age_s=30)) == ()
    assert ("u", "", "sb") in online_sessions(server.client)


def test_a_login_is_not_superseded_for_good_by_one_whose_call_may_have_come_late(a: Hand, b: Hand) -> None:
    send(a, 8, login("u", "sa"))
    (superseded,) = send(b, 0, login("u", "sb", age_s=9))
    assert superseded.return_allowed


def test_a_pending_login_whose_call_came_late_does_not_win_over_a_later_one(
    a: Hand, b: Hand, server: Server
) -> None:
    b.apply(login("u", "s0"))
    send(a, 60, hold("u", "sa"))
    b.apply(end("u", "s0"))
    assert online_sessions(server.client) == {("u", "", "sa")}
    assert send(b, 0, login("u", "sb", age_s=10)) == ()
    assert online_sessions(server.client) == {("u", "", "sb")}


@pytest.mark.parametrize(("is_clock_known", "stays_online"), [(True, True), (False, False)])
def test_a_pending_login_whose_call_came_late_is_no_younger_than_an_end_that_it_precedes(
    a: Hand, b: Hand, server: Server, is_clock_known: bool, stays_online: bool
) -> None:
    a.apply(login("u", "s1"))
    sent_ms = record(server.client, "u")["sessions"][""]["login_ms"]
    time.sleep(0.2)  # on its way: the login seems to be 0.2 s younger than it is
    batch = b.batch([hold("u", "s2")], b.n + 1)
    b.send(replace(batch, sent_ms=sent_ms if is_clock_known else 0))
    a.apply(end("u", "s1", age_s=0.1))
    assert (online_sessions(server.client) == {("u", "", "s2")}) is stays_online
