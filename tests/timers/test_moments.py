from hypothesis import example, given
from hypothesis import strategies as st

from presence.timers.moments import Moments

SECONDS = st.floats(0, 4e7)


@given(origin=st.floats(0, 1e6), tick_s=st.floats(0.001, 5), delay_s=SECONDS)
@example(origin=0.0, tick_s=0.01, delay_s=0.07)  # 0.07 / 0.01 is more than 7
@example(origin=0.0, tick_s=0.01, delay_s=0.29)  # 0.29 / 0.01 is less than 29
def test_a_tick_for_a_deadline_is_the_first_that_begins_at_it_or_later(
    origin: float, tick_s: float, delay_s: float
) -> None:
    moments, deadline = Moments(origin, tick_s), origin + delay_s
    tick = moments.at_or_after(deadline)
    assert moments.starts(tick) >= deadline
    assert tick == 0 or moments.starts(tick - 1) < deadline


@given(origin=st.floats(0, 1e6), tick_s=st.floats(0.001, 5), passed_s=SECONDS)
def test_the_last_tick_begun_has_begun_and_the_next_has_not(
    origin: float, tick_s: float, passed_s: float
) -> None:
    moments, now = Moments(origin, tick_s), origin + passed_s
    tick = moments.begun(now)
    assert moments.starts(tick) <= now < moments.starts(tick + 1)


@given(tick=st.integers(0, 10**9), origin=st.floats(0, 1e6))
def test_the_moment_at_which_a_tick_begins_is_in_it(tick: int, origin: float) -> None:
    moments = Moments(origin, 0.01)
    assert moments.begun(moments.starts(tick)) == tick == moments.at_or_after(moments.starts(tick))
