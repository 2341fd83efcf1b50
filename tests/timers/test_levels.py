"""The hierarchical wheel against a list, by a Hypothesis state machine, and its guarantees one by one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from presence.timers.levels import HUSKS_TOLERATED, Levels, TimerEntry

LAP = 256
# Near, around the ends of laps, and far: every level and every border between two.
AHEAD = st.one_of(
    st.integers(-3, 40),
    st.integers(LAP - 3, 2 * LAP + 3),
    st.integers(0, 3 * LAP**2),
    st.sampled_from([LAP**power + more for power in (2, 3, 4) for more in (-1, 0, 1)]),
)


class Named(TimerEntry):
    __slots__ = ("order",)

    def __init__(self, order: int) -> None:
        self.slot = None
        self.order = order


class LevelsAgainstList(RuleBasedStateMachine):
    """Every operation is applied to the wheel and to a list of (tick, order of adding); they must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000
        self.wheel: Levels[Named] = Levels(self.now, moves_per_tick=2)
        self.model: dict[Named, tuple[int, int]] = {}
        self.entries: list[Named] = []
        self.added = 0

    def put(self, entry: Named, ahead: int) -> None:
        tick = self.now + ahead
        self.added += 1
        entry.order = self.added
        self.model[entry] = (max(tick, self.wheel.cursor + 1), self.added)
        self.wheel.add(entry, tick)

    @rule(ahead=AHEAD, count=st.integers(1, 5))
    def add(self, ahead: int, count: int) -> None:
        for _ in range(count):
            entry = Named(0)
            self.entries.append(entry)
            self.put(entry, ahead)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        assert self.wheel.remove(entry) == (self.model.pop(entry, None) is not None)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), ahead=AHEAD)
    def add_again(self, data: st.DataObject, ahead: int) -> None:
        entry = data.draw(st.sampled_from(self.entries))
        self.wheel.remove(entry)
        self.model.pop(entry, None)
        self.put(entry, ahead)

    @rule(ticks=AHEAD, limit=st.integers(1, 6), steps=st.integers(1, 30))
    def step(self, ticks: int, limit: int, steps: int) -> None:
        self.now += max(0, ticks)
        for _ in range(steps):
            taken = self.wheel.step(self.now, limit)
            if taken is None:
                assert all(tick > self.now for tick, _ in self.model.values()), "everything due was taken"
                break
            assert len(taken) <= limit
            ticks_due = [self.model.pop(entry)[0] for entry in taken]
            assert all(tick <= self.now for tick in ticks_due), "never early"
            earliest = min([*ticks_due, *(tick for tick, _ in self.model.values())], default=0)
            assert set(ticks_due) <= {earliest}, "earliest first, and all of one tick"

    @rule()
    def sleep_until_next_work(self) -> None:
        wake = self.wheel.next_tick()
        if wake is None:
            assert not self.model
            return
        assert all(tick >= wake for tick, _ in self.model.values()), "never too late"
        self.now = max(self.now, wake)

    @invariant()
    def same_size(self) -> None:
        assert len(self.wheel) == len(self.model)

    def teardown(self) -> None:
        """No entry is left behind, and each is due in time."""
        while (wake := self.wheel.next_tick()) is not None:
            self.now = max(self.now, wake)
            while (taken := self.wheel.step(self.now, 7)) is not None:
                for entry in taken:
                    assert self.model.pop(entry)[0] <= self.now
        assert not self.model


LevelsAgainstList.TestCase.settings = settings(
    max_examples=2 * settings().max_examples, stateful_step_count=30, deadline=None
)
TestLevelsAgainstList = LevelsAgainstList.TestCase


def drain(wheel: Levels[Named], tick: int, limit: int = 1000) -> list[Named]:
    taken: list[Named] = []
    while (step := wheel.step(tick, limit)) is not None:
        taken += step
    return taken


def filled(ticks: list[int], **options: int) -> tuple[Levels[Named], list[Named]]:
    wheel: Levels[Named] = Levels(**options)
    entries = [Named(order) for order in range(len(ticks))]
    for entry, tick in zip(entries, ticks, strict=True):
        wheel.add(entry, tick)
    return wheel, entries


def test_entries_of_one_tick_keep_their_order_even_after_a_move_from_a_higher_level() -> None:
    wheel, early = filled([70_000] * 50, moves_per_tick=10)
    late = []
    for tick in range(69_000, 70_000, 100):
        assert drain(wheel, tick) == []
        late.append(Named(0))
        wheel.add(late[-1], 70_000)
    assert drain(wheel, 70_000, limit=7) == early + late


def test_a_far_jump_skips_empty_slots() -> None:
    wheel, entries = filled([5, 500_000_000])
    steps = 0
    taken: list[Named] = []
    while (step := wheel.step(500_000_000, 10)) is not None:
        taken += step
        steps += 1
    assert taken == entries
    assert steps < 10


def test_a_large_window_moves_down_early_and_in_parts() -> None:
    """When its first entry is due, no more than one tick's work is left to move."""
    begins, count, per_tick = 2 * LAP**2, 3000, 100
    wheel, _ = filled([begins + n % 200 for n in range(count)], moves_per_tick=per_tick)
    wake = wheel.next_tick()
    assert wake is not None
    assert begins - LAP**2 <= wake < begins - count // per_tick
    while wake < begins:
        assert drain(wheel, wake) == [], "nothing is early"
        assert wake != wheel.next_tick(), "what is not urgent waits"
        wake = wheel.next_tick() or 0
    moves = 0
    while not wheel.step(begins, 1):
        moves += 1
    assert moves <= per_tick


def test_a_step_is_bounded_whether_it_expires_or_moves_entries() -> None:
    wheel, entries = filled([10_000] * 1000)
    sizes = []
    while (step := wheel.step(10_000, 64)) is not None:
        sizes.append(len(step))
    assert sum(sizes) == len(entries)
    assert max(sizes) == 64
    assert sizes.count(0) == 16, "sixteen steps down, of at most 64 entries each"


def test_cancelled_entries_never_outnumber_live_ones() -> None:
    wheel, entries = filled([1000] * 10_000)
    for entry in entries[:9_990]:
        assert wheel.remove(entry)
    slot = entries[-1].slot
    assert slot is not None
    assert len(slot) <= 2 * HUSKS_TOLERATED + 20


def test_moving_between_two_slots_does_not_accumulate_memory() -> None:
    wheel, (entry,) = filled([10])
    for n in range(10_000):
        wheel.remove(entry)
        wheel.add(entry, 10 + n % 2)
    slot = entry.slot
    assert slot is not None
    assert len(slot) <= 2 * HUSKS_TOLERATED + 2
    assert drain(wheel, 20) == [entry]


def test_slots_with_cancelled_entries_only_cause_no_wake_up() -> None:
    wheel, entries = filled([10, 400, 100_000])
    for entry in entries:
        wheel.remove(entry)
    assert wheel.next_tick() is None


def test_a_tick_beyond_its_range_is_an_error() -> None:
    wheel, _ = filled([])
    entry = Named(0)
    with pytest.raises(OverflowError):
        wheel.add(entry, wheel.reach + 1)
    wheel.add(entry, wheel.reach)
    assert drain(wheel, wheel.reach) == [entry]


def test_a_window_too_large_to_move_down_in_time_waits_for_room() -> None:
    ticks = [4 * LAP + n % LAP for n in range(900)]
    wheel, entries = filled(ticks, moves_per_tick=1)
    taken: list[Named] = []
    while (wake := wheel.next_tick()) is not None:
        tick = max(wake, wheel.cursor + 1)
        step = drain(wheel, tick)
        assert all(entry.tick <= tick for entry in step), (
            "a ring of two laps keeps a third lap for the first slot"
        )
        taken += step
    assert len(taken) == len(entries)


def test_an_entry_added_to_a_moved_window_needs_no_further_step() -> None:
    wheel, (first,) = filled([LAP + 10])
    assert drain(wheel, LAP + 10) == [first]
    wheel.add(Named(1), LAP + 100)
    assert wheel.next_tick() == LAP + 100


def test_an_entry_removed_and_added_again_is_there_once() -> None:
    wheel, (entry, *others) = filled([10] * 41)
    for n in range(40):
        wheel.remove(entry)
        wheel.add(entry, 11 - n % 2)
    for other in others:
        wheel.remove(other)
    assert len(wheel) == 1
    assert drain(wheel, 20) == [entry]
