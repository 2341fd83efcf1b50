"""What devices do when, by the moments that a scenario names."""

import math
from collections import Counter

import pytest

from loadtest.scenario import SCENARIOS, Scenario, stair

WEIGHTS = {"silence": 0.25, "away": 0.75, "logout": 0.0}


def scenario(name: str) -> Scenario:
    return Scenario(name, WEIGHTS, alone_s=20.0, together_s=60.0)


@pytest.mark.parametrize("name", ["storm", "silence"])
def test_all_act_together_at_full_multiples_of_the_wall_clock(name: str) -> None:
    first = scenario(name).next(now=100.0, wall=6_000_010.0)
    second = scenario(name).next(
        now=900.0, wall=6_000_059.0
    )  # another process, whose monotonic clock differs
    assert (first.at, second.at) == (150.0, 901.0)


def test_who_has_just_acted_waits_for_the_next_multiple() -> None:
    assert scenario("storm").next(now=0.0, wall=6_000_000.0).at == 60.0


@pytest.mark.parametrize("name", ["steady", "ramp"])
def test_who_only_beats_never_does_anything_else(name: str) -> None:
    assert scenario(name).next(0.0, 0.0).at == math.inf


@pytest.mark.parametrize(("devices", "mean_s"), [(1, 20.0), (500, 0.04)])
def test_by_itself_each_device_acts_as_often_as_it_was_told(devices: int, mean_s: float) -> None:
    plays = scenario("flapping")
    waits = [plays.next(7.0, 0.0, devices).at - 7.0 for _ in range(20_000)]
    assert sum(waits) / len(waits) == pytest.approx(mean_s, rel=0.05)


def test_the_mixed_scenario_acts_by_its_weights() -> None:
    plays = scenario("mixed")
    acts = Counter(plays.next(0.0, 0.0).name for _ in range(10_000))
    assert set(acts) == {"silence", "away"}
    assert acts["away"] / 10_000 == pytest.approx(0.75, abs=0.05)


def test_a_scenario_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=", ".join(SCENARIOS)):
        scenario("chaos")


@pytest.mark.parametrize(("alone_s", "together_s"), [(0.0, 60.0), (20.0, -1.0)])
def test_a_time_that_is_none_is_refused(alone_s: float, together_s: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Scenario("mixed", WEIGHTS, alone_s, together_s)


def test_a_ramp_rises_in_ten_steps_and_ends() -> None:
    heights = [stair(second, 100.0, 95) for second in range(0, 101, 10)]
    assert heights == [10, 19, 29, 38, 48, 57, 67, 76, 86, 95, None]
