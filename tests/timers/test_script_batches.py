"""Arguments of the timers' scripts: checked, rounded up, and split into bounded calls."""

import math

import msgpack
import pytest

from presence.timers.interface import MAX_DELAY_S, MAX_ID_BYTES, MAX_PAYLOAD_BYTES, Event, TimerError
from presence.timers.shared_timer import MAX_ITEMS_PER_CALL, delay_ms, event_batches, id_batches


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
        (Event("ä" * (MAX_ID_BYTES // 2) + "a", 1.0), "an id has 1 to"),
        (Event("\ud800", 1.0), "no UTF-8"),
        (Event("a", 1.0, bytes(MAX_PAYLOAD_BYTES + 1)), "a payload has at most"),
        *((Event("a", delay_s), "delay_s") for delay_s in (-0.001, MAX_DELAY_S + 1, math.nan, math.inf)),
    ],
)
def test_an_event_out_of_bounds_is_refused(event: Event, complaint: str) -> None:
    with pytest.raises(TimerError, match=complaint):
        list(event_batches([event]))


def test_the_largest_event_is_accepted() -> None:
    largest = Event("ä" * (MAX_ID_BYTES // 2), MAX_DELAY_S, bytes(MAX_PAYLOAD_BYTES))
    (packed,) = event_batches([largest])
    assert len(packed) > MAX_PAYLOAD_BYTES + MAX_ID_BYTES


def test_many_or_large_events_are_several_calls() -> None:
    many = [len(msgpack.unpackb(each)) for each in event_batches(Event(str(n), 1.0) for n in range(2500))]
    assert many == [3 * MAX_ITEMS_PER_CALL, 3 * MAX_ITEMS_PER_CALL, 1500]
    large = [
        len(each) for each in event_batches(Event(str(n), 1.0, bytes(MAX_PAYLOAD_BYTES)) for n in range(40))
    ]
    assert len(large) == 3
    assert max(large) < 2 * (1 << 20)
    assert [len(msgpack.unpackb(each)) for each in id_batches(map(str, range(1001)))] == [1000, 1]
