"""Watch requests that wait for states."""

from presence.watching.states import State
from presence.watching.waiting import Waiter, Waiting
from tests.watching.fakes import session

ANN, _ = session("ann")
BOB, _ = session("bob")
STATE = State("online", 1, None, "1-0")


def waiter(*uids: str, deadline: float = 5.0) -> Waiter:
    return Waiter(ANN, 1, list(uids), deadline)


def test_a_request_is_complete_with_the_last_state() -> None:
    waiting = Waiting()
    request = waiter("x", "y")
    waiting.add(request)
    assert waiting.came("x", STATE) == []
    assert waiting.came("y", STATE) == [request]
    assert waiting.is_awaited("x"), "he must not be let go before the answer"
    assert waiting.take(request)
    assert request.states == {"x": STATE, "y": STATE}
    assert (len(waiting), waiting.uids) == (0, 0)
    assert not waiting.is_awaited("x")


def test_what_was_known_is_not_waited_for() -> None:
    waiting = Waiting()
    request = waiter("x", "y")
    request.states["x"] = STATE
    waiting.add(request)
    assert waiting.is_awaited("x")
    assert waiting.came("x", STATE) == []
    assert waiting.came("y", STATE) == [request]


def test_one_state_can_complete_several() -> None:
    waiting = Waiting()
    first, second = waiter("x"), waiter("x")
    waiting.add(first)
    waiting.add(second)
    assert waiting.came("x", STATE) == [first, second]


def test_what_was_unwatched_meanwhile_is_not_wanted() -> None:
    waiting = Waiting()
    request = waiter("x", "y")
    waiting.add(request)
    waiting.unwatch(ANN, ["x", "stranger"])
    assert request.unwatched == {"x"}
    assert waiting.of(ANN) == {"y"}
    assert list(request.wanted) == ["y"]
    waiting.unwatch(ANN, None)
    assert list(request.wanted) == []
    waiting.unwatch(BOB, None)


def test_time_is_up_for_the_oldest_first() -> None:
    waiting = Waiting()
    first, second = waiter("x", deadline=1.0), waiter("y", deadline=2.0)
    waiting.add(first)
    waiting.add(second)
    assert waiting.next_deadline() == 1.0
    assert waiting.overdue(0.9) is None
    assert waiting.overdue(1.0) is first
    assert waiting.overdue(1.0) is None
    assert waiting.next_deadline() == 2.0


def test_what_is_complete_is_never_overdue() -> None:
    waiting = Waiting()
    waiting.add(waiter("x"))
    waiting.came("x", STATE)
    assert waiting.next_deadline() is None
    assert waiting.overdue(99.0) is None


def test_who_left_is_not_answered() -> None:
    waiting = Waiting()
    request = waiter("x")
    waiting.add(request)
    assert waiting.uids_of(ANN) == 1
    assert waiting.left(ANN) == [request]
    assert not waiting.take(request)
    assert waiting.uids_of(ANN) == 0
    assert waiting.came("x", STATE) == []
    assert len(waiting) == 0
