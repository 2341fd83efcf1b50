"""States in records are what was put there, and what is beside records is counted."""

from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis.strategies import (
    DrawFn,
    booleans,
    composite,
    dictionaries,
    integers,
    lists,
    none,
    sampled_from,
    text,
    tuples,
)

from presence.protocol import Code
from presence.watching.packed_states import PAGE_SLOTS, PackedStates
from presence.watching.user_states import NO_ENTRY, EntryId, WatchedDevice, WatchedState, id_text

NOW_MS = 1_800_000_000_000
numbers = sampled_from([0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**63, 2**64, 10**30])
times = none() | numbers | integers(NOW_MS - 10**7, NOW_MS + 10**7) | numbers.map(lambda each: NOW_MS + each)
entries = tuples(times.map(lambda each: each or 0), numbers | integers(0, 5))
devices = tuples(
    text(max_size=3), sampled_from(["online", "away"]), integers(0, 9), text(max_size=3), text(max_size=3)
)


@composite
def states(draw: DrawFn) -> WatchedState:
    statuses = sampled_from(["online", "away", "offline", "busy", "dnd", "unknown", "not_allowed"])
    return WatchedState(
        draw(statuses | text(max_size=3)),
        draw(times),
        draw(times),
        draw(
            entries.map(id_text)
            | sampled_from(["", "5", "05-0", "5-", "x", "5-0-0", "\u0665-0"])
            | text(max_size=3)
        ),
        draw(sampled_from(["", '{"a":1}', "é"]) | text(max_size=3)),
        draw(sampled_from(["", *(code.reason for code in Code)]) | text(max_size=3)),
        draw(
            none() | lists(devices, max_size=2).map(lambda some: tuple(WatchedDevice(*each) for each in some))
        ),
        draw(booleans()),
    )


slots = sampled_from([0, 1, PAGE_SLOTS - 1, PAGE_SLOTS, 3 * PAGE_SLOTS])


@given(lists(tuples(slots, none() | tuples(states(), entries)), max_size=30))
def test_each_state_is_what_was_put_there_last(
    steps: list[tuple[int, tuple[WatchedState, EntryId] | None]],
) -> None:
    packed = PackedStates()
    known: dict[int, tuple[WatchedState, EntryId]] = {}
    for slot, said in steps:
        if said is None:
            packed.forget(slot)
            known.pop(slot, None)
        else:
            packed.set(slot, *said)
            known[slot] = said
        assert len(packed) == len(known)
        for each in (0, 1, PAGE_SLOTS - 1, PAGE_SLOTS, 3 * PAGE_SLOTS, 9 * PAGE_SLOTS):
            assert packed.is_known(each) is (each in known)
            assert packed.get(each) == known.get(each)
    for slot in known:
        packed.forget(slot)
    assert packed.unusual_bytes == 0


@given(dictionaries(slots, tuples(states(), entries), max_size=5))
def test_types_are_those_of_a_state(said: dict[int, tuple[WatchedState, EntryId]]) -> None:
    packed = PackedStates()
    for slot, (state, as_of) in said.items():
        packed.set(slot, state, as_of)
        found = packed.get(slot)
        assert found is not None
        assert [type(each) for each in found[0]] == [type(each) for each in state]


ID = id_text((NOW_MS, 0))


@pytest.mark.parametrize(
    "state",
    [
        WatchedState("offline"),
        WatchedState("offline", devices=()),
        WatchedState("offline", NOW_MS, NOW_MS - 40_000, ID, reason="idle_timeout", devices=()),
        WatchedState("offline", None, NOW_MS),
        WatchedState("offline", None, NOW_MS, ID),
        WatchedState("offline", hides_times=True),
        WatchedState("online", NOW_MS - 24 * 86_400_000, None, ID),
        WatchedState("busy", NOW_MS, None, id_text((NOW_MS, 2**32 - 1))),
    ],
)
def test_a_plain_state_is_in_its_record_alone(state: WatchedState) -> None:
    packed = PackedStates()
    packed.set(0, state, (NOW_MS, 7))
    assert packed.unusual_bytes == 0


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (WatchedState("online", NOW_MS, None, ID, meta="m" * 500), "m" * 500),
        (
            WatchedState(
                "online", NOW_MS, None, ID, devices=(WatchedDevice("d", "online", 1, "", "x" * 500),)
            ),
            "x" * 500,
        ),
        (WatchedState("online", reason="r" * 60), "r" * 60),
        (WatchedState("online", NOW_MS, NOW_MS - 25 * 86_400_000), ""),
    ],
    ids=["meta", "devices", "reason", "numbers"],
)
def test_what_is_beside_a_record_is_counted_with_its_texts(state: WatchedState, text: str) -> None:
    packed = PackedStates()
    packed.set(0, state, NO_ENTRY)
    assert packed.unusual_bytes >= getsizeof(text)
    packed.set(0, WatchedState("offline"), NO_ENTRY)
    assert packed.unusual_bytes == 0


def test_numbers_of_a_refused_record_leave_the_state_whole() -> None:
    packed = PackedStates()
    packed.set(0, WatchedState("online", 1), (5, 6))
    packed.set(0, WatchedState("away", 2), (2**70, 1))
    assert packed.get(0) == (WatchedState("away", 2), (2**70, 1))
    assert packed.unusual_bytes > 0
