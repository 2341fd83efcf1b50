"""What the benchmark makes of its figures: ratios, tables, plots, files, exit status."""

import math
import struct
from pathlib import Path

import pytest

from loadtest.bench import __main__ as command
from loadtest.bench import plots, report, wheel
from loadtest.bench.dialects import ANSWERED, UNANSWERED
from loadtest.bench.prober import LOGIN
from loadtest.bench.results import Cpu, Load, Memory, Results, Trips, Wheel, percentile

FAST = Load(UNANSWERED, 15_000.0, 2_000)
ANSWERS = Load(ANSWERED, 15_000.0, 2_000)


def cpu(server: str, number: int, load: Load, us: float, complaints: list[str] | None = None) -> Cpu:
    return Cpu(server, number, load, us, 1.0, 0.3, complaints or [])


@pytest.fixture
def results() -> Results:
    """Three rounds of two servers on one load, and one of three on another."""
    found = Results({"kernel": "Linux 1"}, {"rounds": 3}, {"presence": "this", "floor": "C", "nats": "Go"})
    for number, (own, floor) in enumerate([(5.0, 10.0), (9.0, 10.0), (8.0, 4.0)], 1):
        found.cpu += [cpu("presence", number, FAST, own), cpu("floor", number, FAST, floor)]
    found.cpu += [cpu("presence", 1, ANSWERS, 15.0), cpu("nats", 1, ANSWERS, 60.0)]
    found.memory += [
        Memory("presence", 1, 2_000, 390.4, 380.0, 45_600_000),
        Memory("nats", 1, 2_000, 19_300.0, 19_200.0, 300_000_000),
    ]
    found.trips += [Trips("presence", n, FAST, LOGIN, [1.0 * n, 2.0 * n]) for n in (1, 2)]
    return found


def table(text: str, title: str) -> list[list[str]]:
    """Return the rows of the table under a heading."""
    _, _, after = text.partition(f"## {title}\n\n")
    lines = after.split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:1] + lines[2:]]


def test_ratios_are_taken_within_a_round(results: Results) -> None:
    assert results.ratios("floor", FAST) == [0.5, 0.9, 2.0]


def test_a_round_in_which_only_one_was_measured_has_no_ratio(results: Results) -> None:
    results.cpu.append(cpu("presence", 4, FAST, 1.0))
    assert results.ratios("floor", FAST) == [0.5, 0.9, 2.0]


def test_results_come_back_from_json_as_they_were(results: Results, tmp_path: Path) -> None:
    results.wheel.append(Wheel(10, 1.0, 2.0, 3.0, 4.0, 5.0))
    results.write(tmp_path / "found.json")
    assert Results.read(tmp_path / "found.json") == results


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.5)) == (50.0, 99.0, 7.0)
    assert math.isnan(percentile([], 0.5))


def test_the_summary_has_a_column_for_each_ratio_that_was_measured(results: Results) -> None:
    assert table(report.bench_table(results), "In short") == [
        ["rate", "unanswered ÷ floor", "answered ÷ nats"],
        ["15,000/s", "0.90", "0.25"],
    ]


def test_a_load_shows_the_median_and_each_round(results: Results) -> None:
    rows = table(report.bench_table(results), "15,000 keepalives/s, unanswered")
    assert rows[1][:3] == ["presence", "8.0 (5.0, 9.0, 8.0)", ""]
    assert rows[2][:3] == ["floor", "10.0 (10.0, 10.0, 4.0)", "0.90 (0.50, 0.90, 2.00)"]


def test_memory_and_round_trips_have_their_tables(results: Results) -> None:
    text = report.bench_table(results)
    assert ["presence", "2,000", "390", "380", "45.6"] in table(text, "Memory")
    assert table(text, "Round trips under these loads, ms")[1][1:] == [
        "login",
        "presence",
        "4",
        "2.0",
        "4.0",
        "4.0",
    ]


def test_a_figure_with_a_complaint_is_marked(results: Results) -> None:
    results.cpu.append(cpu("floor", 4, FAST, 1.0, ["the generator was late"]))
    text = report.bench_table(results)
    assert "| floor **not valid** |" in text
    assert "floor, 15,000/s, unanswered over 2,000, round 4: the generator was late" in text


def test_what_was_left_out_is_named(results: Results) -> None:
    results.skipped["mosquitto"] = "mosquitto is not on PATH"
    assert "- mosquitto: skipped, mosquitto is not on PATH" in report.bench_table(results)


def size_of(picture: Path) -> tuple[int, int]:
    """Return the width and height that a PNG file states."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_plots_are_small_pictures(results: Results, tmp_path: Path) -> None:
    plots.draw_bench(results, tmp_path)
    for name in ("cpu", "memory", "latency"):
        assert size_of(tmp_path / f"{name}.png")[0] == 900
        assert (tmp_path / f"{name}.png").stat().st_size < 60_000


def test_cost_against_size_has_its_table_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "TOUCHES_LEAST", 5_000)
    found = Results({}, {}, {"presence": "this server"})
    for connections, own in ((1_000, 220.0), (5_000, 1_100.0)):
        for rate in (3_300.0, own):
            found.cpu.append(cpu("presence", 1, Load(UNANSWERED, rate, connections), 1e4 / rate))
        found.memory.append(Memory("presence", 1, connections, 400.0, 400.0, 40_000_000 + 400 * connections))
    found.wheel += [wheel.measure(480, 1), wheel.measure(960, 1)]
    rows = table(report.sizes_table(found), "This server")
    assert [row[:3] for row in rows[1:3]] == [["1,000", "220", "45.5"], ["1,000", "3,300", "3.0"]]
    assert [row[4:] for row in rows[1:]] == [["40.4", "400 B"]] * 2 + [["42.0", "400 B"]] * 2
    assert [row[0] for row in table(report.sizes_table(found), "The timing wheel")[1:]] == ["480", "960"]
    plots.draw_sizes(found, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"sizes.png", "wheel.png"}


def test_figures_that_are_not_valid_are_the_exit_status(results: Results, tmp_path: Path) -> None:
    line = ["--out", str(tmp_path), "--redraw"]
    results.write(tmp_path / "bench.json")
    assert command.main(line) == 0
    results.cpu.append(cpu("floor", 4, FAST, 1.0, ["the generator was late"]))
    results.write(tmp_path / "bench.json")
    assert command.main(line) == 1


def test_a_server_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such server: apache"):
        command.chosen("uvloop,apache", 512)


def test_this_server_is_always_measured() -> None:
    servers, _ = command.chosen("uvloop", 512)
    assert [each.name for each in servers] == ["presence", "uvloop"]


def test_more_connections_than_files_are_refused() -> None:
    with pytest.raises(SystemExit, match="may be open"):
        command.claim_descriptors(10**9)
