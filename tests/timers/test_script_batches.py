"""What timers tell the scripts: checked, rounded so that nothing is early, and cut into bounded pieces."""

import math

import msgpack
import pytest

from presence.timers.interface import DELAY_S_MAX, ID_BYTES_MAX, PAYLOAD_BYTES_MAX, Event, TimerError
from presence.timers.script_batches import ITEMS_A_CALL, batches, delay_ms, names


@pytest.mark.parametrize(
    ("delay_s", "ms"),
    [(0, 0), (0.0001, 1), (0.001, 1), (0.0011, 2), (0.07, 70), (1.9999, 2000), (30, 30_000)],
)
def test_delays_are_rounded_up(delay_s: float, ms: int) -> None:
    assert delay_ms(delay_s) == ms


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (Event("", 1.0), "an id has 1 to"),
        (Event("ä" * (ID_BYTES_MAX // 2) + "a", 1.0), "an id has 1 to"),
        (Event("\ud800", 1.0), "no UTF-8"),
        (Event("a", 1.0, bytes(PAYLOAD_BYTES_MAX + 1)), "a payload has at most"),
        *((Event("a", delay_s), "delay_s") for delay_s in (-0.001, DELAY_S_MAX + 1, math.nan, math.inf)),
    ],
)
def test_an_event_out_of_bounds_is_refused(event: Event, complaint: str) -> None:
    with pytest.raises(TimerError, match=complaint):
        list(batches([event]))


def test_the_largest_event_is_taken() -> None:
    largest = Event("ä" * (ID_BYTES_MAX // 2), DELAY_S_MAX, bytes(PAYLOAD_BYTES_MAX))
    (packed,) = batches([largest])
    assert len(packed) > PAYLOAD_BYTES_MAX + ID_BYTES_MAX


def test_many_or_large_events_are_several_calls() -> None:
    many = [len(msgpack.unpackb(each)) for each in batches(Event(str(n), 1.0) for n in range(2500))]
    assert many == [3 * ITEMS_A_CALL, 3 * ITEMS_A_CALL, 1500]
    large = [len(each) for each in batches(Event(str(n), 1.0, bytes(PAYLOAD_BYTES_MAX)) for n in range(40))]
    assert len(large) == 3
    assert max(large) < 2 * (1 << 20)
    assert [len(msgpack.unpackb(each)) for each in names(map(str, range(1001)))] == [1000, 1]
