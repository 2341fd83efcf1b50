"""The load generator's estimate of the server's clock."""

import pytest

from presence.loadtest.judge import ServerClockBounds


def test_one_answer_bounds_the_clock_by_its_round_trip() -> None:
    clock = ServerClockBounds()
    clock.sample(asked=2.0, answered=2.1, server_ms=52_000)
    assert clock.bounds(53_000) == pytest.approx((3.0 - 0.002, 3.1 + 0.002))


def test_answers_narrow_the_bounds_together() -> None:
    clock = ServerClockBounds()
    clock.sample(asked=2.0, answered=2.1, server_ms=52_000)  # the answer was slow
    clock.sample(asked=2.0, answered=2.1, server_ms=52_090)  # the request was slow
    low, high = clock.bounds(53_000)
    assert high - low == pytest.approx(0.014, abs=1e-3)


def test_bounds_widen_with_the_drift_of_clocks() -> None:
    clock = ServerClockBounds()
    clock.sample(asked=2.0, answered=2.001, server_ms=52_000)
    clock.sample(asked=1002.0, answered=1012.0, server_ms=1_057_000)
    low, high = clock.bounds(53_000)
    assert low < 2.9
    assert high > 3.1


def test_another_servers_clock_replaces_the_first() -> None:
    clock = ServerClockBounds()
    clock.sample(asked=2.0, answered=2.1, server_ms=52_000)
    clock.sample(asked=3.0, answered=3.1, server_ms=7_000)
    assert clock.bounds(7_000) == pytest.approx((3.0 - 0.002, 3.1 + 0.002))
