"""The ring of slots in Redis: no lap is missed or early, however long no worker called."""

import re
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from presence.common.errors import StoreError
from presence.store.redis_client import Redis
from presence.store.script_runner import Scripting
from presence.timers.interface import Event, TimerError
from presence.timers.kinds import RingTimer
from tests.timers.shared_timers import BASE, places, slots, wait_for

SLOTS, TICK_S = 8, 0.01


@pytest.fixture
def ring(scripting: Scripting, client: Redis) -> RingTimer:
    return RingTimer(scripting, BASE, slots=SLOTS, tick_s=TICK_S)


def hand(client: Redis) -> int:
    found: Any = client.hget(f"{BASE}:ring", "hand")
    return int(found)


@pytest.mark.parametrize("delay_s", [100.0, 100.001, 100.0035, 100.009, 200.5])
def test_an_event_belongs_to_the_first_tick_after_its_time(
    ring: RingTimer, client: Redis, delay_s: float
) -> None:
    ring.schedule(Event("a", delay_s))
    packed: Any = client.hget(f"{BASE}:work", "a")
    due_ms = msgpack.unpackb(packed)[0]
    slots: Any = client.keys(f"{BASE}:slot:*")
    lap: Any = client.zscore(slots[0], "a")
    tick = lap * SLOTS + int(slots[0].rpartition(b":")[2])
    assert due_ms <= tick * TICK_S * 1000 < due_ms + TICK_S * 1000


def test_the_rest_of_a_slot_is_not_left_for_the_next_lap(ring: RingTimer, client: Redis) -> None:
    ring.schedule_many(Event(name, 0.0) for name in "abc")
    time.sleep(2 * TICK_S)
    first = ring.due(limit=2)
    stopped_before = hand(client)
    ring.schedule(Event("d", 0.0))
    second = wait_for(ring, 2)
    assert [due.id for due in (*first, *second)] == ["a", "b", "c", "d"]
    assert hand(client) > stopped_before


@pytest.mark.parametrize("ticks", [1, 2, SLOTS, 10_000])
def test_adding_behind_the_hand_moves_it_back(ring: RingTimer, client: Redis, ticks: int) -> None:
    ring.due()
    client.hset(f"{BASE}:ring", "hand", hand(client) + ticks)  # as after a clock that was set back
    ring.schedule(Event("a", 0.0))
    assert [due.id for due in wait_for(ring)] == ["a"]


def test_many_empty_slots_in_the_past_take_one_call(scripting: Scripting, client: Redis) -> None:
    ring = RingTimer(scripting, BASE, slots=5000, tick_s=TICK_S)
    ring.schedule(Event("a", 0.0))
    client.hincrby(f"{BASE}:ring", "hand", -4000)  # no call for 40 s
    time.sleep(2 * TICK_S)
    assert [due.id for due in ring.due()] == ["a"]


def test_at_most_one_lap_is_read(ring: RingTimer, client: Redis) -> None:
    ring.schedule(Event("a", 0.0))
    client.hset(f"{BASE}:ring", "hand", 1)  # no call since 1970
    client.config_resetstat()
    time.sleep(2 * TICK_S)
    assert [due.id for due in ring.due()] == ["a"]
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_zrangebyscore"]["calls"] <= SLOTS + 1


@pytest.mark.parametrize("others", [{"slots": SLOTS + 1}, {"tick_s": 0.02}])
def test_a_worker_with_other_settings_is_refused(
    ring: RingTimer, scripting: Scripting, others: dict[str, Any]
) -> None:
    assert ring.due() == []  # the first call stores the settings
    other = RingTimer(scripting, BASE, **{"slots": SLOTS, "tick_s": TICK_S, **others})
    for call in (other.due, lambda: other.schedule(Event("b", 0.0))):
        with pytest.raises(TimerError, match=r"this ring has 8 slots of 10 ms: .* redis-cli DEL .*:ring$"):
            call()


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"slots": 86_401}, {"tick_s": 0.0}, {"tick_s": 4000.0}])
def test_settings_out_of_bounds_are_refused(scripting: Scripting, wrong: dict[str, Any]) -> None:
    with pytest.raises(TimerError, match=next(iter(wrong))):
        RingTimer(scripting, BASE, **wrong)


def test_events_whose_slot_was_lost_are_handed_out(ring: RingTimer, client: Redis) -> None:
    ring.schedule_many(Event(str(n), 0.0, b"x") for n in range(100))
    client.delete(*slots(client))
    ring.schedule(Event("later", 60.0))
    found: list[str] = []
    for _ in range(20):
        # as if more than a second had passed: the walk makes a step in each
        client.hincrby(f"{BASE}:ring", "hand", -round(1.5 / TICK_S))
        found += [due.id for due in ring.due(limit=100)]
    assert sorted(found, key=int) == [str(n) for n in range(100)]
    assert places(client)["later"] == "waiting"


Damage = Callable[[Redis], object]
DAMAGED_HANDS: dict[str, Damage] = {
    "all of it is lost": lambda client: client.delete(f"{BASE}:ring"),
    "no hand": lambda client: client.hdel(f"{BASE}:ring", "hand"),
    "empty": lambda client: client.hset(f"{BASE}:ring", "hand", ""),
    "no number": lambda client: client.hset(f"{BASE}:ring", "hand", "nan"),
    "too large": lambda client: client.hset(f"{BASE}:ring", "hand", "1e999"),
    "ahead of the clock": lambda client: client.hincrby(f"{BASE}:ring", "hand", 10**6),
}


@pytest.mark.parametrize("damage", DAMAGED_HANDS)
def test_a_lost_hand_delays_no_event(scripting: Scripting, client: Redis, damage: str) -> None:
    ring = RingTimer(scripting, BASE, slots=6000, tick_s=TICK_S)  # a lap takes a minute
    ring.schedule_many([Event("a", 0.0), Event("b", 60.5)])
    time.sleep(2 * TICK_S)
    DAMAGED_HANDS[damage](client)
    assert [due.id for due in wait_for(ring)] == ["a"]
    assert places(client) == {"a": "leased", "b": "waiting"}


@pytest.mark.parametrize("field", ["slots", "tick_ms"])
@pytest.mark.parametrize("value", ["", "x", "1e999"])
def test_damaged_settings_count_as_absent(ring: RingTimer, client: Redis, field: str, value: str) -> None:
    ring.schedule(Event("a", 0.0))
    client.hset(f"{BASE}:ring", field, value)
    assert [due.id for due in wait_for(ring)] == ["a"]
    stored: Any = client.hmget(f"{BASE}:ring", "slots", "tick_ms")
    assert stored == [b"8", b"10"]


Use = Callable[[RingTimer], object]
USES: dict[str, Use] = {
    "due": lambda ring: ring.due(),
    "reschedule": lambda ring: ring.reschedule("a", 5.0),
    "schedule": lambda ring: ring.schedule(Event("b", 100.0)),
    "state": lambda ring: ring.state(),
}


@pytest.mark.parametrize("use", USES)
def test_a_slot_of_another_type_is_named_with_its_repair(
    scripting: Scripting, client: Redis, use: str
) -> None:
    ring = RingTimer(scripting, BASE, slots=1, tick_s=TICK_S)
    ring.schedule(Event("a", 0.0))
    client.delete(*slots(client))
    client.set(f"{BASE}:slot:0", "of another program")
    time.sleep(2 * TICK_S)
    with pytest.raises(StoreError, match=re.escape(f"redis-cli DEL {BASE}:slot:0") + "$"):
        USES[use](ring)
    client.delete(f"{BASE}:slot:0")
    USES[use](ring)
