"""How a soak judges what grows."""

from random import Random

import pytest

from loadtest.soak.trend import BLOCKS, trend

TIMES = [float(second) for second in range(0, 3600, 10)]


def noisy(per_hour: float, noise: float = 1.0, level: float = 100.0) -> list[float]:
    chance = Random(3)
    return [level + per_hour * at / 3600 + chance.uniform(-noise, noise) for at in TIMES]


def test_a_figure_that_grows_is_found_in_noise() -> None:
    found = trend(TIMES, noisy(5.0))
    assert found.growth == pytest.approx(5, abs=found.error)
    assert found.grows


@pytest.mark.parametrize(("per_hour", "noise"), [(0.0, 5.0), (-20.0, 1.0), (0.9, 0.01), (5.0, 60.0)])
def test_noise_shrinking_and_next_to_nothing_do_not_count(per_hour: float, noise: float) -> None:
    assert not trend(TIMES, noisy(per_hour, noise)).grows


def test_a_step_is_no_steady_growth_and_yet_counts() -> None:
    values = [100.0 if at < 1800 else 130.0 for at in TIMES]
    assert trend(TIMES, values).grows


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=f"needs {BLOCKS}"):
        trend(TIMES[: BLOCKS - 1], noisy(0.0)[: BLOCKS - 1])
