"""The guarantees of every shared timer, on a real server: no event is early, lost or duplicated."""

import random
import time
from typing import Any
from unittest import mock

import pytest

from presence.common.errors import StoreInterrupted, StoreUnavailable
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.interface import Due, Event, TimerError, TimerFull
from presence.timers.kinds import RingTimer
from presence.timers.shared_timer import Leasing, SharedTimer
from tests.timers.shared_timers import BASE, KINDS, TICK_S, a_timer, let_pass, places, wait_for

LEASING = Leasing(lease_s=2.0, attempts_max=2)  # shorter than a lap of `let_pass`


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def timer(scripting: Scripting, client: Redis, kind: str) -> SharedTimer:
    return a_timer(scripting, kind, LEASING)


def claimed(timer: SharedTimer, event_id: str = "a", payload: bytes = b"x") -> Due:
    timer.schedule(Event(event_id, 0.0, payload))
    (due,) = wait_for(timer)
    return due


def wait_until_due(timer: SharedTimer) -> None:
    time.sleep(TICK_S if isinstance(timer, RingTimer) else 0.002)


def lose_answer(timer: SharedTimer) -> None:
    """Let the timer's next call of `due` be carried out, and lose its answer."""
    evaluate = timer._scripting.evaluate

    def lost(calls: Any) -> list[Any]:
        return [StoreInterrupted("timed out") for _ in evaluate(calls)]

    with mock.patch.object(timer._scripting, "evaluate", lost), pytest.raises(StoreInterrupted):
        timer.due()


def dead_letter(timer: SharedTimer, event_id: str = "a", payload: bytes = b"x") -> Due:
    """Make an event a dead letter; return its last delivery."""
    timer.retry(claimed(timer, event_id, payload), 0)
    (last,) = wait_for(timer)
    timer.retry(last)
    return last


def test_no_event_is_early_even_by_a_microsecond(timer: SharedTimer, client: Redis) -> None:
    asked_us = {}
    for number in range(40):
        clock: Any = client.time()
        delay_s = random.uniform(0.0, 0.06)
        asked_us[str(number)] = clock[0] * 1_000_000 + clock[1] + delay_s * 1_000_000
        timer.schedule(Event(str(number), delay_s))
    found = wait_for(timer, 40)
    assert {each.id for each in found} == set(asked_us)
    assert all((each.due_ms + each.late_ms) * 1000 >= asked_us[each.id] for each in found)


def test_a_call_about_a_rescheduled_event_is_void(timer: SharedTimer) -> None:
    first = claimed(timer)
    timer.cancel("a")
    second = claimed(timer)
    assert first.attempt == second.attempt
    assert timer.done([first]) == 0
    assert timer.done([second]) == 1


def test_an_event_that_kills_its_workers_becomes_a_dead_letter_and_blocks_no_other(
    timer: SharedTimer, client: Redis
) -> None:
    timer.schedule_many(Event(f"old {number}", 0.0) for number in range(5))
    wait_for(timer, 5)
    let_pass(client)
    assert len(timer.due()) == 5
    let_pass(client)
    timer.schedule(Event("new", 0.0))
    time.sleep(1.2 * TICK_S)
    assert [due.id for due in timer.due(limit=2)] == ["new"]
    assert timer.due() == []
    assert len(timer.dead()) == 5


def test_dead_letters_are_listed_in_pages_purged_and_requeued(timer: SharedTimer) -> None:
    for name in ("a", "b", "c"):
        dead_letter(timer, name)
        time.sleep(0.002)  # they are listed by the millisecond of their death
    assert [letter.id for letter in timer.dead(limit=2)] == ["a", "b"]
    assert [letter.id for letter in timer.dead(limit=2, skip=2)] == ["c"]
    assert timer.purge(["a", "c", "unknown"]) == 2
    assert [letter.id for letter in timer.dead()] == ["b"]
    assert timer.requeue(["b", "unknown"]) == 1
    assert [(due.id, due.attempt) for due in wait_for(timer)] == [("b", 1)]


def test_a_waiting_event_can_be_rescheduled(timer: SharedTimer) -> None:
    timer.schedule_many([Event("a", 0.02), Event("b", 9.0), Event("c", 0.04)])
    assert timer.reschedule("a", 9.0)
    assert timer.reschedule("b", 0.0)
    assert sorted(due.id for due in wait_for(timer, 2)) == ["b", "c"]
    assert timer.reschedule_many(["a", "b", "unknown"], 0.0) == ["b", "unknown"]
    assert [due.id for due in wait_for(timer)] == ["a"]


def test_a_full_timer_accepts_known_events_only(scripting: Scripting, client: Redis, kind: str) -> None:
    timer = a_timer(scripting, kind, events_max=3)
    timer.schedule_many([Event("a", 9.0), Event("b", 9.0)])
    with pytest.raises(TimerFull, match="holds 2 events of 3"):
        timer.schedule_many([Event("c", 9.0), Event("d", 9.0)])
    assert timer.state().waiting == 2
    assert timer.schedule_many([Event("a", 9.0), Event("b", 9.0), Event("c", 9.0)]) == 1


def test_many_events_of_one_time_are_due_in_bounded_slices(timer: SharedTimer) -> None:
    assert timer.schedule_many(Event(str(number), 0.0) for number in range(2500)) == 2500
    time.sleep(1.2 * TICK_S)
    slices = [timer.due(limit=1000) for _ in range(3)]
    assert [len(each) for each in slices] == [1000, 1000, 500]
    dues = [due for each in slices for due in each]
    assert len({due.id for due in dues}) == 2500
    assert timer.done(dues) == 2500


def test_large_payloads_are_claimed_a_few_at_a_time(timer: SharedTimer) -> None:
    timer.schedule_many(Event(str(number), 0.0, bytes(65_536)) for number in range(20))
    time.sleep(1.2 * TICK_S)
    assert [len(timer.due()) for _ in range(3)] == [16, 4, 0]


def test_a_server_without_memory_still_claims_and_acknowledges(timer: SharedTimer, client: Redis) -> None:
    timer.schedule(Event("a", 0.0))
    try:
        client.config_set("maxmemory", 1)
        (due,) = wait_for(timer)
        assert timer.extend([due]) == 1
        assert timer.give_back([due]) == 1
        (due,) = timer.due()
        assert timer.retry(due, 0)
        (due,) = wait_for(timer)
        assert timer.done([due]) == 1
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            timer.schedule(Event("b", 0.0))
    finally:
        client.config_set("maxmemory", 0)
    assert timer.state().waiting == 0


def test_events_that_keep_failing_do_not_block_new_ones(
    scripting: Scripting, client: Redis, kind: str
) -> None:
    timer = a_timer(scripting, kind, Leasing(attempts_max=1000))
    timer.schedule_many(Event(f"failing {number}", 0.0) for number in range(8))
    for due in wait_for(timer, 8):
        timer.retry(due, 0.0)
    timer.schedule(Event("new", 0.0))
    time.sleep(1.2 * TICK_S)
    for _ in range(10):
        dues = timer.due(limit=2)
        if "new" in {due.id for due in dues}:
            return
        for due in dues:
            timer.retry(due, 0.0)
    pytest.fail("20 others were handed out, and not what was new")


def test_a_name_has_one_kind(scripting: Scripting, client: Redis, kind: str) -> None:
    timer, other = (a_timer(scripting, each) for each in sorted(KINDS, key=lambda each: each != kind))
    timer.schedule(Event("a", 0.0))
    for call in (other.due, other.state, lambda: other.schedule(Event("b", 0.0)), lambda: other.cancel("a")):
        with pytest.raises(TimerError, match=f"of another kind: {kind}"):
            call()
    assert [due.id for due in wait_for(timer)] == ["a"]


def test_a_damaged_entry_is_dropped_and_affects_no_other(timer: SharedTimer, client: Redis) -> None:
    timer.schedule_many([Event("a", 0.0), Event("b", 0.0)])
    client.hset(f"{BASE}:work", "a", "no MessagePack")
    assert [due.id for due in wait_for(timer)] == ["b"]
    assert "a" not in places(client)


def test_the_next_due_time_is_reported(timer: SharedTimer) -> None:
    assert timer.state().next_s is None
    timer.schedule(Event("a", 9.0))
    next_s = timer.state().next_s
    assert next_s is not None
    # A ring does not read that far ahead in one call: it returns when to read again.
    assert 2.0 < next_s <= 9.03
    claimed(timer, "b")
    next_s = timer.state().next_s  # the end of the lease
    assert next_s is not None
    assert 1.5 < next_s <= 2.0


def test_events_are_counted(timer: SharedTimer, client: Redis) -> None:
    timer.schedule_many([Event("a", 0.0), Event("b", 99.0)])
    wait_for(timer)
    assert timer.state().counts == {"scheduled": 2, "handed": 1}
    let_pass(client)
    timer.done(timer.due())
    timer.cancel("b")
    assert timer.state().counts == {"scheduled": 2, "handed": 1, "again": 1, "done": 1, "cancelled": 1}


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_limit_out_of_bounds_is_refused(timer: SharedTimer, limit: int) -> None:
    with pytest.raises(TimerError, match="limit"):
        timer.due(limit)


def test_retry_delays_double_up_to_a_limit_and_vary() -> None:
    leasing = Leasing(backoff_s=1.0, backoff_max_s=8.0)
    for attempt, whole_s in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (999, 8)]:
        pauses = {leasing.pause_s(attempt) for _ in range(20)}
        assert len(pauses) > 1
        assert all(whole_s / 2 <= pause_s <= whole_s for pause_s in pauses)


@pytest.mark.parametrize(
    "wrong", [{"lease_s": 0}, {"attempts_max": 0}, {"backoff_s": 2, "backoff_max_s": 1}, {"backoff_s": -1}]
)
def test_a_leasing_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TimerError, match=next(iter(wrong))):
        Leasing(**wrong)  # type: ignore[arg-type]  # a count is a number too


@pytest.mark.parametrize("walk", [None, b"", b"1e999", b"9" * 30, b"\xff"])
def test_events_of_a_queue_that_lost_its_index_are_handed_out(
    scripting: Scripting, client: Redis, walk: bytes | None
) -> None:
    timer = a_timer(scripting, "queue", LEASING)
    timer.schedule_many(Event(str(n), 0.0, b"x") for n in range(200))
    (leased,) = wait_for(timer, limit=1)
    timer.schedule(Event("later", 60.0))
    client.delete(f"{BASE}:due")
    if walk is not None:
        client.hset(f"{BASE}:counts", "walk", walk)
    found = wait_for(timer, 199)
    assert {each.id for each in found} == {str(n) for n in range(200)} - {leased.id}
    timer.due()  # the walk goes on
    assert places(client) == dict.fromkeys([leased.id, *(each.id for each in found)], "leased") | {
        "later": "waiting"
    }


@pytest.mark.parametrize("bounds", [(0, 0), (-1, 0), (1, -1)])
def test_dead_letters_are_listed_with_a_limit(timer: SharedTimer, bounds: tuple[int, int]) -> None:
    with pytest.raises(TimerError):
        timer.dead(*bounds)


def test_damaged_counts_stop_no_event(timer: SharedTimer, client: Redis) -> None:
    timer.schedule(Event("a", 0.0))
    client.hset(f"{BASE}:counts", mapping={"handed": "x", "done": "1e999", "scheduled": ""})
    (due,) = wait_for(timer)
    assert timer.done([due]) == 1
    counts = timer.state().counts
    assert (counts["handed"], counts["done"]) == (1, 1)


def test_a_lost_answer_costs_no_attempt(scripting: Scripting, client: Redis, kind: str) -> None:
    timer = a_timer(scripting, kind, Leasing(lease_s=2.0, attempts_max=1))
    timer.schedule_many([Event("a", 0.0, b"x"), Event("b", 0.0, b"y")])
    wait_until_due(timer)
    for _ in range(3):
        lose_answer(timer)
    assert sorted((due.id, due.payload, due.attempt) for due in timer.due()) == [
        ("a", b"x", 1),
        ("b", b"y", 1),
    ]
    assert timer.due() == []
    assert timer.state().counts == {"scheduled": 2, "handed": 2}


def test_an_event_whose_answer_was_lost_for_longer_than_its_lease_has_its_attempt(
    scripting: Scripting, client: Redis
) -> None:
    timer = a_timer(scripting, "queue", Leasing(lease_s=2.0, attempts_max=1))
    timer.schedule(Event("a", 0.0))
    wait_until_due(timer)
    lose_answer(timer)
    client.zadd(f"{BASE}:leased", {"a": 0})  # the lease has ended
    assert [(due.id, due.attempt) for due in timer.due()] == [("a", 1)]


def test_events_of_a_lost_answer_that_another_worker_has_stay_there(
    scripting: Scripting, client: Redis, kind: str
) -> None:
    timer, other = (a_timer(scripting, kind, LEASING) for _ in range(2))
    timer.schedule(Event("a", 0.0))
    wait_until_due(timer)
    lose_answer(timer)
    client.zadd(f"{BASE}:leased", {"a": 0})  # the lease has ended
    (theirs,) = wait_for(other)
    assert theirs.attempt == 2
    assert timer.due() == []
    assert other.done([theirs]) == 1


def test_an_answered_call_is_not_repeated(timer: SharedTimer) -> None:
    due = claimed(timer)
    assert timer.due() == []
    assert timer.done([due]) == 1
    assert timer.due() == []
