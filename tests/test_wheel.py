"""The wheel, held against a plain dict by a Hypothesis state machine, and its promises one by one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from presence.wheel import TimingWheel

KEYS = st.integers(0, 30)
AHEAD = st.one_of(st.integers(-3, 40), st.integers(0, 500))


class WheelAgainstDict(RuleBasedStateMachine):
    """Every operation is done to the wheel and to a dict of key to tick; they must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel: TimingWheel[int] = TimingWheel(8, cursor=100)
        self.model: dict[int, int] = {}
        self.swept = 100

    @rule(key=KEYS, ahead=AHEAD)
    def touch(self, key: int, ahead: int) -> None:
        tick = self.swept + ahead
        self.wheel.touch(key, tick)
        self.model[key] = self.due_at(key, tick)

    @rule(keys=st.lists(KEYS), ahead=AHEAD)
    def touch_all(self, keys: list[int], ahead: int) -> None:
        tick = self.swept + ahead
        self.wheel.touch_all(keys, tick)
        for key in keys:
            self.model[key] = self.due_at(key, tick)

    def due_at(self, key: int, tick: int) -> int:
        cursor = self.wheel.cursor
        return max(tick, cursor + 1)

    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        assert self.wheel.forget(key) == (self.model.pop(key, None) is not None)

    @rule(ticks=st.one_of(st.integers(0, 5), st.integers(0, 600)), limit=st.integers(1, 10))
    def expire_a_slice(self, ticks: int, limit: int) -> None:
        now = self.wheel.cursor + ticks
        taken = self.wheel.expire(now, limit)
        due = sorted(self.model.values())[: len(taken)]
        assert len(set(taken)) == len(taken) <= limit
        assert sorted(self.model[key] for key in taken) == due, "oldest slots first"
        assert all(self.model[key] <= now for key in taken), "never early"
        for key in taken:
            del self.model[key]
        if len(taken) < limit:
            assert all(tick > now for tick in self.model.values()), "everything due was taken"
            self.swept = max(self.swept, now)
        self.swept = max(self.swept, self.wheel.cursor)

    @invariant()
    def same_content(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert all(self.wheel.tick_of(key) == tick for key, tick in self.model.items())
        assert all((key in self.wheel) == (key in self.model) for key in range(31))

    @invariant()
    def sizes_add_up(self) -> None:
        assert sum(self.wheel.slot_sizes(1200)) == len(self.model)


WheelAgainstDict.TestCase.settings = settings(stateful_step_count=60, deadline=None)
TestWheelAgainstDict = WheelAgainstDict.TestCase


def test_a_touch_moves_the_key_into_its_new_slot() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.touch("ann", 3)
    wheel.touch("ann", 5)
    assert wheel.slot_sizes(6) == [0, 0, 0, 0, 1, 0]


def test_a_late_tick_sweeps_every_slot_that_passed() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for tick in range(1, 20):
        wheel.touch(f"user {tick}", tick)
    assert wheel.expire(18, limit=1000) == [f"user {tick}" for tick in range(1, 19)]


def test_a_fresh_key_is_not_mistaken_for_an_old_one_after_more_than_a_revolution() -> None:
    wheel: TimingWheel[str] = TimingWheel(8)
    wheel.touch("old", 1)
    wheel.touch("fresh", 1 + 8 * 1000)
    assert wheel.expire(8000, limit=10) == ["old"]
    assert wheel.expire(8001, limit=10) == ["fresh"]


def test_a_touch_between_slices_saves_the_key() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    wheel.touch_all(range(100), 1)
    first = wheel.expire(1, limit=40)
    saved = next(iter(set(range(100)) - set(first)))
    wheel.touch(saved, 7)
    rest = wheel.expire(1, limit=1000)
    assert len(first) == 40
    assert len(rest) == 59
    assert saved not in rest


def test_an_emptied_slot_gives_its_memory_back() -> None:
    wheel: TimingWheel[int] = TimingWheel()
    wheel.touch_all(range(10_000), 1)
    wheel.expire(1, limit=10_000)
    assert all(slot.__sizeof__() < 1000 for slot in wheel._ring)


def test_keys_may_be_of_any_hashable_kind() -> None:
    wheel: TimingWheel[str | tuple[str, str]] = TimingWheel()
    wheel.touch("ann", 1)
    wheel.touch(("ann", "phone"), 1)
    assert len(wheel.expire(1, limit=9)) == 2
