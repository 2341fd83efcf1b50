"""What the hypervisor took is told, and the worst second of any processor counts."""

from collections.abc import Iterator

import pytest

from loadtest.usage import WINDOW_SAMPLES, Stolen


def stolen_from(*looks: list[float]) -> Stolen:
    """Return one that has looked so often."""
    told: Iterator[list[float]] = iter(looks)
    stolen = Stolen(lambda: next(told))
    for _ in looks:
        stolen.look()
    return stolen


def test_what_was_taken_before_does_not_count() -> None:
    assert stolen_from([50.0, 7.0]).worst_s == 0.0


def test_the_processor_that_lost_most_counts() -> None:
    assert stolen_from([50.0, 7.0], [50.1, 7.3]).worst_s == pytest.approx(0.3)


def test_the_worst_second_counts_and_no_longer_time() -> None:
    stolen = stolen_from(*([0.02 * sample] for sample in range(5 * WINDOW_SAMPLES)))
    assert stolen.worst_s == pytest.approx(0.02 * WINDOW_SAMPLES)
