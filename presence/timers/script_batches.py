"""Arguments of the timers' scripts, checked and packed in bounded batches."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgpack

from presence.timers.interface import MAX_ID_BYTES, MAX_PAYLOAD_BYTES, Due, Event, TimerError, check_delay

MAX_ITEMS_PER_CALL: Final = 1000  # a few milliseconds of Redis
MAX_BYTES_PER_CALL: Final = 1 << 20  # of ids and payloads, roughly; one event more may exceed it


def delay_ms(delay_s: float) -> int:
    """Return a delay in whole milliseconds, rounded up; raises TimerError if it is out of bounds."""
    check_delay(delay_s)
    # 0.07 * 1000 is a little more than 70: a rounding error must not add a millisecond.
    return math.ceil(round(delay_s * 1000, 6))


def checked_id(event_id: str) -> str:
    """Return a valid id; raises TimerError for an invalid one."""
    try:
        size = len(event_id.encode())
    except UnicodeEncodeError:
        raise TimerError(f"an id that is no UTF-8: {event_id[:40]!r}") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise TimerError(f"an id has 1 to {MAX_ID_BYTES} bytes: {event_id[:40]!r}")
    return event_id


def event_batches(events: Iterable[Event]) -> Iterator[bytes]:
    """Pack events for schedule.lua, in batches bounded in items and bytes."""
    flat: list[object] = []
    size = 0
    for event_id, delay_s, payload in events:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise TimerError(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes: {event_id!r}: {len(payload)}")
        flat += (checked_id(event_id), delay_ms(delay_s), payload)
        size += len(event_id) + len(payload)
        if len(flat) == 3 * MAX_ITEMS_PER_CALL or size >= MAX_BYTES_PER_CALL:
            yield _pack(flat)
            flat, size = [], 0
    if flat:
        yield _pack(flat)


def _pack(values: Sequence[object]) -> bytes:
    packed: bytes = msgpack.packb(values, use_bin_type=False)  # Redis' Lua knows one kind of string
    return packed


def _packed(values: Sequence[object], step: int) -> Iterator[bytes]:
    return (_pack(values[first : first + step]) for first in range(0, len(values), step))


def claim_batches(dues: Iterable[Due]) -> Iterator[bytes]:
    """Pack id, due time and attempt of events that were handed out, in bounded batches."""
    flat = [value for due in dues for value in (due.id, due.due_ms, due.attempt)]
    return _packed(flat, 3 * MAX_ITEMS_PER_CALL)


def id_batches(event_ids: Iterable[str]) -> Iterator[bytes]:
    """Pack ids, in bounded batches."""
    return _packed([checked_id(each) for each in event_ids], MAX_ITEMS_PER_CALL)
