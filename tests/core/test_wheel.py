"""The wheel, compared with a plain dict by a Hypothesis state machine, and its guarantees one by one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from presence.core.wheel import TimingWheel

KEYS = st.integers(0, 30)
AHEAD = st.one_of(st.integers(-3, 40), st.integers(0, 500))


class WheelAgainstDict(RuleBasedStateMachine):
    """Every operation is applied to the wheel and to a dict of key to slot; they must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel: TimingWheel[int] = TimingWheel(8, cursor=100)
        self.model: dict[int, int] = {}
        self.swept = 100

    @rule(key=KEYS, ahead=AHEAD)
    def touch(self, key: int, ahead: int) -> None:
        slot = self.swept + ahead
        self.wheel.touch(key, slot)
        self.model[key] = self.due_at(key, slot)

    @rule(keys=st.lists(KEYS), ahead=AHEAD)
    def touch_all(self, keys: list[int], ahead: int) -> None:
        slot = self.swept + ahead
        self.wheel.touch_all(keys, slot)
        for key in keys:
            self.model[key] = self.due_at(key, slot)

    def due_at(self, key: int, slot: int) -> int:
        cursor = self.wheel.cursor
        return max(slot, cursor + 1)

    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        assert self.wheel.discard(key) == (self.model.pop(key, None) is not None)

    @rule(slots=st.one_of(st.integers(0, 5), st.integers(0, 600)), limit=st.integers(1, 10))
    def expire_a_slice(self, slots: int, limit: int) -> None:
        now = self.wheel.cursor + slots
        taken = self.wheel.pop_due(now, limit)
        due = sorted(self.model.values())[: len(taken)]
        assert len(set(taken)) == len(taken) <= limit
        assert sorted(self.model[key] for key in taken) == due, "oldest slots first"
        assert all(self.model[key] <= now for key in taken), "never early"
        for key in taken:
            del self.model[key]
        if len(taken) < limit:
            assert all(slot > now for slot in self.model.values()), "everything due was taken"
            self.swept = max(self.swept, now)
        self.swept = max(self.swept, self.wheel.cursor)

    @invariant()
    def same_content(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert all(self.wheel.slot_of(key) == slot for key, slot in self.model.items())
        assert all((key in self.wheel) == (key in self.model) for key in range(31))

    @invariant()
    def sizes_add_up(self) -> None:
        assert sum(self.wheel.slot_sizes(1200)) == len(self.model)


WheelAgainstDict.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestWheelAgainstDict = WheelAgainstDict.TestCase


def test_an_emptied_slot_frees_its_memory() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    wheel.touch_all(range(10_000), 1)
    wheel.pop_due(1, limit=10_000)
    assert all(slot.__sizeof__() < 1000 for slot in wheel._ring)


def test_keys_that_were_discarded_long_before_they_were_due_leave_nothing_behind() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    wheel.touch_all(range(10_000), 20)
    for key in range(1, 10_000):
        assert wheel.discard(key)
    assert max(slot.__sizeof__() for slot in wheel._ring) < 1000
    assert wheel.pop_due(20, limit=10) == [0]


def test_only_an_empty_wheel_is_advanced() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    wheel.advance(20)
    wheel.advance(10)
    assert wheel.cursor == 20
    wheel.touch(1, 21)
    wheel.advance(30)
    assert wheel.cursor == 20
    assert wheel.pop_due(30, limit=10) == [1]
