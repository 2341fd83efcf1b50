"""The clock of a process."""

from presence.common.clock import Clock


def test_a_step_of_the_wall_clock_changes_no_time() -> None:
    walls = iter([1e9])  # it is read once
    clock = Clock(lambda: 5.0, lambda: next(walls))
    assert clock.seen_ms(6.0009) == clock.decided_ms(6.0) == 1_000_000_001_000
