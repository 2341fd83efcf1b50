"""What the hypervisor took is told by /proc/stat."""

import os
from pathlib import Path

import pytest

from loadtest.stolen import WINDOW_SAMPLES, Stolen

SECOND = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    return tmp_path / "stat"


def tell(stat: Path, *stolen_s: float) -> None:
    rows = [f"cpu{n} 10 0 20 3000 40 0 5 {round(each * SECOND)} 0 0" for n, each in enumerate(stolen_s)]
    stat.write_text("\n".join(["cpu  10 0 20 3000 40 0 5 99999 0 0", *rows, "intr 1", ""]))


def test_what_was_taken_before_does_not_count(stat: Path) -> None:
    stolen = Stolen(stat)
    tell(stat, 50.0, 7.0)
    stolen.look()
    assert stolen.worst_s == 0.0


def test_the_processor_that_lost_most_counts(stat: Path) -> None:
    stolen = Stolen(stat)
    tell(stat, 50.0, 7.0)
    stolen.look()
    tell(stat, 50.1, 7.3)
    stolen.look()
    assert stolen.worst_s == pytest.approx(0.3)


def test_the_worst_second_counts_and_no_longer_time(stat: Path) -> None:
    stolen = Stolen(stat)
    for sample in range(5 * WINDOW_SAMPLES):
        tell(stat, 0.02 * sample)
        stolen.look()
    assert stolen.worst_s == pytest.approx(0.02 * WINDOW_SAMPLES)


def test_where_nobody_tells_nothing_is_stolen(stat: Path) -> None:
    with Stolen(stat) as stolen:
        pass
    assert stolen.worst_s == 0.0


def test_it_looks_while_it_is_entered_and_once_more_at_the_end(stat: Path) -> None:
    tell(stat, 0.0)
    with Stolen(stat) as stolen:
        while not stolen._window:
            pass
        tell(stat, 0.2)
    assert stolen.worst_s == pytest.approx(0.2)
