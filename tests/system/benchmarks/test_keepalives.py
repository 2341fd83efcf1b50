"""The benchmark's command measures, and writes its files."""

import json
from pathlib import Path

import pytest

from benchmarks import keepalives as command
from benchmarks import visits
from benchmarks.load_generator import ANSWERED, UNANSWERED
from benchmarks.prober import KINDS


@pytest.mark.nightly
def test_the_command_measures_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "REST_S", 0.0)
    monkeypatch.setattr(command, "PROBE_SETTLE_S", 0.1)
    line = "--connections 30 --rates 400 --warm-up 0 --seconds 0.3 --probe-seconds 0.5 --rounds 1"
    status = command.main([*line.split(), "--servers", "uvloop", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "bench.json").read_text())
    found = results["cpu"]
    complaints = [each for row in found for each in row["complaints"]]
    assert status == (1 if complaints else 0)  # a busy machine may make the generator late
    assert [(each["server"], each["load"]["kind"]) for each in found] == [
        (server, kind) for server in ("presence", "uvloop") for kind in (UNANSWERED, ANSWERED)
    ]
    assert all(0 < each["cpu_us"] < 10_000 for each in found)
    assert {each["probe"] for each in results["trips"] if each["trips_ms"]} == {*KINDS}
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md", "cpu.png"}
    assert (tmp_path / "bench.md").read_text() in capsys.readouterr().out


@pytest.mark.nightly
def test_visits_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "--rates 100 --seconds 0.5 --rounds 1 --others 30 --servers presence,presence-2 --workers 2"
    status = visits.main([*line.split(), "--out", str(tmp_path)])
    found = json.loads((tmp_path / "visits.json").read_text())["visits"]
    assert status == (1 if any(row["complaints"] for row in found) else 0)
    assert [row["server"] for row in found] == ["presence", "presence-2"]
    assert all(0 < row["cpu_us"] < 50_000 and row["redis_us"] > 0 for row in found)
    assert all(row["login_p99_ms"] > 0 and row["keepalive_p99_ms"] > 0 for row in found)
    assert {path.name for path in tmp_path.iterdir()} == {"visits.json", "visits.md", "visits.png"}
    assert (tmp_path / "visits.md").read_text() in capsys.readouterr().out
