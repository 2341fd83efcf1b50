"""What a worker holds: each event in one place, until Redis has heard how it ended."""

from presence.timers.held import Held
from presence.timers.interface import Due


def due(name: str, attempt: int = 1) -> Due:
    return Due(name, b"", 0, 0, attempt)


A, B, C = due("a"), due("b"), due("c")


def test_events_begin_in_the_order_in_which_they_came() -> None:
    held = Held(10)
    held.take([A, B], 0)
    held.take([C], 1)
    assert [held.begin(2) for _ in range(4)] == [A, B, C, None]


def test_what_lapsed_before_it_began_is_let_go() -> None:
    held = Held(10)
    held.take([A], 0)
    held.take([B], 5)
    assert held.begin(10) == B
    assert (held.lapsed, len(held)) == (1, 1)


def test_leases_are_old_by_when_they_were_asked_for_or_extended() -> None:
    held = Held(10)
    held.take([A, B], 0)
    held.begin(0)
    assert held.aged(4, 4) == [A, B]
    held.extend([A], 4)
    assert held.aged(7, 4) == [B]


def test_an_extension_of_what_ended_meanwhile_holds_nothing() -> None:
    held = Held(10)
    held.take([A], 0)
    held.done(A)
    held.extend([A], 4)
    assert held.aged(100, 0) == []


def test_an_event_counts_until_redis_heard_of_its_end() -> None:
    held = Held(10)
    held.take([A, B, C], 0)
    held.begin(0), held.begin(0)
    held.done(A)
    held.failed(B, 2.5)
    held.return_waiting()
    reports = held.take_reports()
    assert (reports.done, [(r.due, r.delay_s) for r in reports.retries], reports.returns) == (
        [A],
        [(B, 2.5)],
        [C],
    )
    assert (len(held), held.unsaid) == (3, 3)
    held.said(3)
    assert (len(held), held.unsaid) == (0, 0)


def test_two_attempts_of_an_event_are_two() -> None:
    held = Held(10)
    held.take([A], 0)
    held.begin(0)
    held.take([due("a", 2)], 20)
    held.done(A)
    assert held.begin(21) == due("a", 2)
