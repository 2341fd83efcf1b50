"""What every shared timer promises, on a real server: nothing early, lost or doubled."""

import random
import time
from typing import Any

import pytest

from presence.store.batches import StoreUnavailable
from presence.store.client import Redis
from presence.store.scripting import Scripting
from presence.timers.handing import Leasing, SharedTimer
from presence.timers.interface import Due, Event, LeasedTimer, TimerError, TimerFull
from tests.timers.keeping import BASE, KINDS, TICK_S, a_timer, let_pass, places

LEASING = Leasing(lease_s=2.0, attempts_max=2)  # shorter than the lap that `let_pass` lets pass
PATIENCE_S = 3.0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def timer(scripting: Scripting, client: Redis, kind: str) -> SharedTimer:
    return a_timer(scripting, kind, LEASING)


def wait_for(timer: SharedTimer, count: int = 1, limit: int = 100) -> list[Due]:
    deadline, found = time.monotonic() + PATIENCE_S, list[Due]()
    while len(found) < count and time.monotonic() < deadline:
        found += timer.due(limit)
        time.sleep(0.001)
    return found


def handed_out(timer: SharedTimer, event_id: str = "a", payload: bytes = b"x") -> Due:
    timer.schedule(Event(event_id, 0.0, payload))
    (due,) = wait_for(timer)
    return due


def died(timer: SharedTimer, event_id: str = "a", payload: bytes = b"x") -> Due:
    """An event becomes a dead letter; return it as it was handed out last."""
    timer.retry(handed_out(timer, event_id, payload), 0)
    (last,) = wait_for(timer)
    timer.retry(last)
    return last


def test_a_shared_timer_is_a_leased_timer(timer: SharedTimer) -> None:
    leased: LeasedTimer = timer
    assert leased.due() == []


def test_nothing_is_early_by_a_microsecond(timer: SharedTimer, client: Redis) -> None:
    asked_us = {}
    for number in range(40):
        clock: Any = client.time()
        delay_s = random.uniform(0.0, 0.06)
        asked_us[str(number)] = clock[0] * 1_000_000 + clock[1] + delay_s * 1_000_000
        timer.schedule(Event(str(number), delay_s))
    found = wait_for(timer, 40)
    assert {each.id for each in found} == set(asked_us)
    assert all((each.due_ms + each.late_ms) * 1000 >= asked_us[each.id] for each in found)


def test_equal_payloads_are_two_events(timer: SharedTimer) -> None:
    timer.schedule_many([Event("a", 0.0, b"same"), Event("b", 0.0, b"same")])
    assert sorted((each.id, each.payload) for each in wait_for(timer, 2)) == [("a", b"same"), ("b", b"same")]


def test_a_payload_is_any_bytes(timer: SharedTimer) -> None:
    payload = bytes(range(256)) * 2
    assert handed_out(timer, payload=payload).payload == payload


def test_an_id_is_known_until_it_is_done(timer: SharedTimer, client: Redis) -> None:
    assert timer.schedule(Event("a", 0.02, b"first"))
    assert not timer.schedule(Event("a", 9.0, b"second"))
    (first,) = wait_for(timer)
    assert first.payload == b"first"
    assert timer.schedule_many([Event("a", 0.0), Event("b", 9.0), Event("b", 9.0)]) == 1
    timer.done([first])
    assert timer.schedule(Event("a", 9.0))


def test_what_a_worker_had_claimed_that_died_comes_again(timer: SharedTimer, client: Redis) -> None:
    first = handed_out(timer)
    assert timer.due() == []
    let_pass(client)
    (second,) = timer.due()
    assert (second.id, second.payload, second.attempt) == (first.id, first.payload, 2)


def test_a_word_that_comes_after_the_lease_went_to_another_is_void(timer: SharedTimer, client: Redis) -> None:
    first = handed_out(timer)
    let_pass(client)
    (second,) = timer.due()
    first = Due(first.id, first.payload, second.due_ms, 0, 1)  # as if `let_pass` had not changed its time
    assert (timer.done([first]), timer.extend([first]), timer.retry(first, 0), timer.give_back([first])) == (
        0,
        0,
        False,
        0,
    )
    assert timer.done([second]) == 1
    assert timer.state().counts["done"] == 1


def test_a_word_on_an_event_that_was_scheduled_anew_is_void(timer: SharedTimer) -> None:
    first = handed_out(timer)
    timer.cancel("a")
    second = handed_out(timer)
    assert first.attempt == second.attempt
    assert timer.done([first]) == 0
    assert timer.done([second]) == 1


def test_who_is_late_but_the_only_one_may_still_settle(timer: SharedTimer, client: Redis) -> None:
    due = handed_out(timer)
    client.zadd(f"{BASE}:leased", {"a": 1})  # its lease ended long ago
    assert timer.done([due]) == 1
    assert timer.due() == []


def test_done_is_forgotten_whole(timer: SharedTimer, client: Redis) -> None:
    timer.done([handed_out(timer)])
    left: Any = client.keys(f"{BASE}:*")
    assert set(left) <= {f"{BASE}:counts".encode(), f"{BASE}:ring".encode()}


def test_a_lease_that_was_extended_lasts(timer: SharedTimer, client: Redis) -> None:
    due = handed_out(timer)
    client.zadd(f"{BASE}:leased", {"a": due.due_ms + due.late_ms + 1})
    assert timer.extend([due]) == 1
    ends: Any = client.zscore(f"{BASE}:leased", "a")
    assert ends >= due.due_ms + due.late_ms + 2000


def test_what_failed_comes_again_after_a_pause(timer: SharedTimer) -> None:
    due = handed_out(timer)
    begun = time.monotonic()
    assert timer.retry(due, 0.03)
    (again,) = wait_for(timer)
    assert time.monotonic() - begun > 0.03
    assert again.attempt == 2


def test_after_the_last_attempt_that_failed_it_is_a_dead_letter(timer: SharedTimer) -> None:
    last = died(timer, payload=b"poison")
    (letter,) = timer.dead()
    assert (letter.id, letter.payload, letter.attempts) == ("a", b"poison", 2)
    assert timer.due() == []
    assert timer.done([last]) == 0


def test_what_kills_its_workers_is_a_dead_letter_too(timer: SharedTimer, client: Redis) -> None:
    handed_out(timer)
    let_pass(client)
    assert len(timer.due()) == 1
    let_pass(client)
    assert timer.due() == []
    assert [letter.id for letter in timer.dead()] == ["a"]


def test_dead_letters_do_not_hide_what_is_due(timer: SharedTimer, client: Redis) -> None:
    timer.schedule_many(Event(f"old {number}", 0.0) for number in range(5))
    wait_for(timer, 5)
    let_pass(client)
    timer.due()
    timer.schedule(Event("new", 0.0))
    let_pass(client)
    assert [due.id for due in timer.due(limit=2)] == ["new"]


def test_a_dead_letter_can_live_again(timer: SharedTimer) -> None:
    died(timer)
    assert timer.requeue(["a", "nobody"]) == 1
    (first,) = wait_for(timer)
    assert first.attempt == 1
    assert timer.dead() == []


def test_dead_letters_are_listed_by_pages_and_purged(timer: SharedTimer) -> None:
    for name in ("a", "b", "c"):
        died(timer, name)
        time.sleep(0.002)  # they are listed by the millisecond of their death
    assert [letter.id for letter in timer.dead(limit=2)] == ["a", "b"]
    assert [letter.id for letter in timer.dead(limit=2, skip=2)] == ["c"]
    assert timer.purge(["a", "c", "nobody"]) == 2
    assert [letter.id for letter in timer.dead()] == ["b"]
    assert timer.state().waiting == timer.state().leased == 0


def test_what_was_not_begun_goes_back_and_is_not_counted(timer: SharedTimer) -> None:
    due = handed_out(timer)
    for attempt in range(2, 6):
        assert timer.give_back([due]) == 1
        assert timer.give_back([due]) == 0
        (due,) = timer.due()
        assert due.attempt == attempt
    timer.retry(due, 0)
    assert len(wait_for(timer)) == 1


@pytest.mark.parametrize("where", ["waiting", "leased", "dead"])
def test_an_event_can_be_cancelled_wherever_it_is(timer: SharedTimer, client: Redis, where: str) -> None:
    if where == "waiting":
        timer.schedule(Event("a", 9.0))
    else:
        handed_out(timer) if where == "leased" else died(timer)
    assert places(client) == {"a": where}
    assert timer.cancel("a")
    assert not timer.cancel("a")
    assert places(client) == {}
    assert timer.state().waiting == timer.state().leased == timer.state().dead == 0


def test_a_cancelled_event_does_not_come(timer: SharedTimer) -> None:
    timer.schedule_many([Event("a", 0.02), Event("b", 0.04)])
    timer.cancel("a")
    assert [due.id for due in wait_for(timer)] == ["b"]


def test_a_waiting_event_gets_another_time(timer: SharedTimer) -> None:
    timer.schedule_many([Event("a", 0.02), Event("b", 9.0), Event("c", 0.04)])
    assert timer.reschedule("a", 9.0)
    assert timer.reschedule("b", 0.0)
    assert sorted(due.id for due in wait_for(timer, 2)) == ["b", "c"]
    assert timer.reschedule_many(["a", "b", "nobody"], 0.0) == ["b", "nobody"]
    assert [due.id for due in wait_for(timer)] == ["a"]


def test_a_full_timer_takes_nothing_and_knows_whom_it_has(
    scripting: Scripting, client: Redis, kind: str
) -> None:
    timer = a_timer(scripting, kind, events_max=3)
    timer.schedule_many([Event("a", 9.0), Event("b", 9.0)])
    with pytest.raises(TimerFull, match="holds 2 events of 3"):
        timer.schedule_many([Event("c", 9.0), Event("d", 9.0)])
    assert timer.state().waiting == 2
    assert timer.schedule_many([Event("a", 9.0), Event("b", 9.0), Event("c", 9.0)]) == 1


def test_many_at_one_time_come_in_bounded_slices(timer: SharedTimer) -> None:
    assert timer.schedule_many(Event(str(number), 0.0) for number in range(2500)) == 2500
    time.sleep(1.2 * TICK_S)
    slices = [timer.due(limit=1000) for _ in range(3)]
    assert [len(each) for each in slices] == [1000, 1000, 500]
    dues = [due for each in slices for due in each]
    assert len({due.id for due in dues}) == 2500
    assert timer.done(dues) == 2500


def test_large_payloads_come_a_few_at_a_time(timer: SharedTimer) -> None:
    timer.schedule_many(Event(str(number), 0.0, bytes(65_536)) for number in range(20))
    time.sleep(1.2 * TICK_S)
    assert [len(timer.due()) for _ in range(3)] == [16, 4, 0]


def test_a_server_without_memory_still_hands_out_and_settles(timer: SharedTimer, client: Redis) -> None:
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


def test_what_fails_again_and_again_keeps_nothing_new_out(
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


def test_a_name_is_of_one_kind(scripting: Scripting, client: Redis, kind: str) -> None:
    timer, other = (a_timer(scripting, each) for each in sorted(KINDS, key=lambda each: each != kind))
    timer.schedule(Event("a", 0.0))
    for call in (other.due, other.state, lambda: other.schedule(Event("b", 0.0)), lambda: other.cancel("a")):
        with pytest.raises(TimerError, match=f"of another kind: {kind}"):
            call()
    assert [due.id for due in wait_for(timer)] == ["a"]


def test_a_damaged_entry_is_dropped_and_harms_nobody(timer: SharedTimer, client: Redis) -> None:
    timer.schedule_many([Event("a", 0.0), Event("b", 0.0)])
    client.hset(f"{BASE}:work", "a", "no MessagePack")
    assert [due.id for due in wait_for(timer)] == ["b"]
    assert "a" not in places(client)


def test_the_next_time_is_told(timer: SharedTimer) -> None:
    assert timer.state().next_s is None
    timer.schedule(Event("a", 9.0))
    told_s = timer.state().next_s
    assert told_s is not None
    # A ring does not look so far ahead in one call: it tells when to look again.
    assert 2.0 < told_s <= 9.03
    handed_out(timer, "b")
    told_s = timer.state().next_s  # the end of the lease
    assert told_s is not None
    assert told_s <= 2.0


def test_who_waits_as_long_as_he_is_told_finds_it_due(timer: SharedTimer) -> None:
    timer.schedule(Event("a", 0.03))
    told_s = timer.state().next_s
    assert told_s is not None
    time.sleep(told_s + 0.001)  # it is told in whole milliseconds
    assert [due.id for due in timer.due()] == ["a"]


def test_what_happened_is_counted(timer: SharedTimer, client: Redis) -> None:
    timer.schedule_many([Event("a", 0.0), Event("b", 99.0)])
    wait_for(timer)
    let_pass(client)
    timer.done(timer.due())
    timer.cancel("b")
    assert timer.state().counts == {"scheduled": 2, "handed": 1, "again": 1, "done": 1, "cancelled": 1}


@pytest.mark.parametrize("limit", [0, 1001])
def test_a_limit_out_of_bounds_is_refused(timer: SharedTimer, limit: int) -> None:
    with pytest.raises(TimerError, match="limit"):
        timer.due(limit)


def test_pauses_double_up_to_a_limit_and_differ() -> None:
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
