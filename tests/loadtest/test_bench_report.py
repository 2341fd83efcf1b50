"""What the benchmark makes of its figures: ratios within a round, and what is not valid is told."""

import pytest

from loadtest.bench import __main__ as command
from loadtest.bench import report
from loadtest.bench.dialects import UNANSWERED
from loadtest.bench.results import Cpu, Load, Results

FAST = Load(UNANSWERED, 15_000.0, 2_000)


def cpu(server: str, number: int, us: float, complaints: list[str] | None = None) -> Cpu:
    return Cpu(server, number, FAST, us, 1.0, 0.3, complaints or [])


@pytest.fixture
def results() -> Results:
    """Three rounds of two servers."""
    found = Results({"kernel": "Linux 1"}, {"rounds": 3}, {"presence": "this", "floor": "C"})
    for number, (own, floor) in enumerate([(5.0, 10.0), (9.0, 10.0), (8.0, 4.0)], 1):
        found.cpu += [cpu("presence", number, own), cpu("floor", number, floor)]
    return found


def test_ratios_are_taken_within_a_round(results: Results) -> None:
    results.cpu.append(cpu("presence", 4, 1.0))
    assert results.ratios("floor", FAST) == [0.5, 0.9, 2.0]


def test_a_figure_with_a_complaint_is_told(results: Results) -> None:
    assert results.complaints() == []
    assert "not valid" not in report.bench_table(results).lower()
    results.cpu.append(cpu("floor", 4, 1.0, ["the generator was late"]))
    text = report.bench_table(results)
    assert "| floor **not valid** |" in text
    assert "floor, 15,000/s, unanswered over 2,000, round 4: the generator was late" in text


def test_a_server_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such server: apache"):
        command.chosen("uvloop,apache", 512)


def test_this_server_is_always_measured() -> None:
    servers, _ = command.chosen("uvloop", 512)
    assert [each.name for each in servers] == ["presence", "uvloop"]


def test_more_connections_than_files_are_refused() -> None:
    with pytest.raises(SystemExit, match="may be open"):
        command.claim_descriptors(10**9)
