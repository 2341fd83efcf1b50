"""The whole load test in small."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import loop_processes
from benchmarks.scale import fleet
from loadtest.processes import LOCUSTFILE

SMALL = ("--connections", "600", "--workers", "2", "--processes", "2", "--logins", "2000")


SHORT = (
    *("--idle-timeout", "1", "--tick", "0.25", "--beat", "0.4", "--hold", "1.2"),
    *("--floor-hold", "0.4", "--last-beat", "0.4"),
)


def figures_of(directory: Path, *more: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *SMALL, *SHORT, "--out", str(directory), *more],
        cwd=LOCUSTFILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    figures: dict[str, Any] = json.loads((directory / "scale.json").read_text())
    return figures


@pytest.mark.nightly
def test_six_hundred_connections_are_held_and_judged(tmp_path: Path) -> None:
    figures = figures_of(tmp_path)
    silence = figures["silence"]
    assert silence["offline"] == figures["silence after a last beat"]["offline"] == 600
    assert min(silence["decided, s"]) >= 1
    (hold,) = figures["2 workers"]
    assert hold["beats"] == pytest.approx(600 * 3, abs=180)
    assert hold["cpu_us"] > 1
    assert "600 of 600" in (tmp_path / "scale.md").read_text()


@pytest.mark.nightly
def test_those_who_stay_are_not_offline(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "--silent", "60", "--floor-hold", "0")
    assert figures["silence"]["offline"] == figures["silence"]["clients"] == 60
    assert "silence after a last beat" not in figures


@pytest.mark.parametrize(
    ("harm", "words"), [(signal.SIGKILL, "ended at the order"), (signal.SIGSTOP, "does not answer")]
)
def test_a_generator_that_is_gone_ends_the_run_by_its_name(
    monkeypatch: pytest.MonkeyPatch, harm: signal.Signals, words: str
) -> None:
    monkeypatch.setattr(loop_processes, "ORDER_TIMEOUT_S", 2.0)
    monkeypatch.setattr(loop_processes, "END_TIMEOUT_S", 1.0)
    with contextlib.closing(fleet.Fleet([("127.0.0.1", 1)], 10, 2)) as generators:
        generators.status()
        harmed = psutil.Process(generators._processes[1].pid)
        harmed.send_signal(harm)
        with pytest.raises(SystemExit, match=rf"generator 2 of 2 \(pid {harmed.pid}\) {words}"):
            generators.status()
