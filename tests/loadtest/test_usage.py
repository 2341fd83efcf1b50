"""What the hypervisor took is told, and the worst second of any processor counts."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from loadtest import usage
from loadtest.usage import WINDOW_SAMPLES, Memory, Stolen


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


def test_it_looks_while_it_is_entered_and_once_more_at_the_end() -> None:
    taken = [0.0]
    with Stolen(lambda: [taken[0]]) as stolen:
        while not stolen._window:
            pass
        taken[0] = 0.2
    assert stolen.worst_s == pytest.approx(0.2)


def test_a_tree_is_a_process_and_all_below_it() -> None:
    with subprocess.Popen(["bash", "-c", "sleep 9 & (sleep 9; true) & sleep 9"]) as process:
        try:
            found: list[int] = []
            while len(found) < 5:
                found = usage.server_processes(process.pid)
            assert found[0] == process.pid
        finally:
            for pid in found[::-1]:
                os.kill(pid, 15)


def test_a_process_that_is_gone_costs_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert usage.cpu_s([process.pid]) == {process.pid: 0.0}
        assert usage.memory(process.pid) == Memory(0, 0)
        assert usage.server_processes(process.pid) == [process.pid]


def test_memory_of_a_process_is_at_most_what_is_resident() -> None:
    memory = usage.memory(os.getpid())
    assert 1_000_000 < memory.anonymous <= memory.pss <= memory.rss
