"""The stall policy: what is credited, and how much."""

from presence.core.stall_guard import StallGuard


def test_a_stall_is_credited_no_matter_which_part_notices_it_first() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.loop_ran(1.0)
    guard.loop_ran(8.0)  # a transport ran before the ticker did
    guard.loop_ran(8.01)
    assert guard.take_credit(8.02) == 7.0
    assert guard.take_credit(8.03) == 0.0


def test_at_most_t_is_credited_and_once_per_t() -> None:
    guard = StallGuard(tick_s=1.0, idle_timeout=30.0, last=0.0)
    guard.loop_ran(100.0)
    assert guard.take_credit(100.0) == 30.0
    guard.loop_ran(110.0)
    assert guard.take_credit(110.0) == 0.0
    for second in range(111, 130):
        guard.loop_ran(float(second))
    guard.loop_ran(140.0)
    assert guard.take_credit(140.0) == 11.0
    assert guard.credited_s == 41.0
