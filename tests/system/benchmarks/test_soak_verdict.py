"""How a soak judges what grows."""

from argparse import Namespace
from random import Random

import pytest

from benchmarks.soak.__main__ import LATENCIES, TOO_FEW, judge_samples, parse, stretch_of
from benchmarks.soak.trend import BLOCKS, trend
from benchmarks.soak.watch import GAUGES, PROCESS_FIGURES, EventJudge, Samples
from loadtest.outcome import MAX_EXAMPLES
from loadtest.scenario_report import ScenarioReport
from presence.store.embedded import EmbeddedRedis
from presence.subscriber.events import Entry

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


TABLE = "table users"
FIGURES = (*PROCESS_FIGURES, *GAUGES, TABLE, *(f"{name} p99, ms" for name in LATENCIES))


def samples_of(**counts: int) -> Samples:
    """Return samples that do not change, as many of each figure as a soak needs, or as given."""
    samples = Samples()
    for name in FIGURES:
        number = counts.get(name.partition(" ")[0], 2 * BLOCKS)
        if number:
            samples.times[name] = [float(second) for second in range(number)]
            samples.values[name] = [5.0] * number
    return samples


def verdict(samples: Samples, *, events_only: bool = False) -> list[str]:
    report = ScenarioReport("soak")
    judge_samples(samples, Namespace(warm_up=0.1, events_only=events_only), report)
    return report.broken


def test_figures_that_stay_the_same_pass() -> None:
    assert verdict(samples_of()) == []


@pytest.mark.parametrize(("name", "number"), [("descriptors", 0), ("threads", BLOCKS - 1), ("login", 0)])
def test_a_figure_that_was_not_sampled_often_enough_fails(name: str, number: int) -> None:
    samples = samples_of(**{name: number})
    (broken,) = verdict(samples)
    assert broken.startswith(name)
    assert broken.endswith(TOO_FEW)
    assert verdict(samples, events_only=True) == []


def test_a_server_whose_tables_were_not_seen_fails() -> None:
    assert verdict(samples_of(table=0)) == ["no table of the server was seen"]


@pytest.mark.parametrize(
    "words", [["--rate", "0"], ["--crowd", "0"], ["--warm-up", "1"], ["--restart-every", "-1"]]
)
def test_a_soak_that_makes_no_sense_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_promises_that_are_broken_all_the_time_are_counted_and_not_kept(redis_server: EmbeddedRedis) -> None:
    judge = EventJudge(redis_server.url, 3.0)
    fields = {"type": "online", "uid": "ann", "session": "s-1", "at_ms": "0"}
    try:
        for number in range(1000):
            judge._add(Entry(0, f"{number + 1}-0", fields))
    finally:
        judge.close()
    assert judge.found.count("doubled") == 999
    assert len(judge.found.broken) == 1 + MAX_EXAMPLES


@pytest.mark.parametrize(
    ("seconds", "stretch_s"), [(3.0, 3.0), (10.0, 5.0), (600.0, 30.0), (1200.0, 60.0), (4800.0, 60.0)]
)
def test_a_run_has_enough_stretches_to_judge_the_latency_of_logins(seconds: float, stretch_s: float) -> None:
    assert stretch_of(seconds) == stretch_s
    if seconds >= 120:
        assert (1 - parse([]).warm_up) * seconds / stretch_s >= BLOCKS
