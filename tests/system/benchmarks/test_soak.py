"""A soak and bad networks in small: what happened is judged, not whether anything grows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.processes import LOCUSTFILE


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=LOCUSTFILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.alone  # visits that are late end without their logout
def test_three_thousand_visits_with_restarts_of_redis(tmp_path: Path) -> None:
    size = ("--visits", "3000", "--rate", "200", "--users", "900", "--crowd", "40")
    run("benchmarks.soak", *size, "--restart-every", "4", "--events-only", "--out", str(tmp_path))
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["visits"] == 3000
    assert found["transitions"] > 6000  # the crowd's are beside them
    assert int(found["rows"]["restarts of Redis"]) >= 2
    assert int(found["rows"]["changes of rooms"].replace(",", "")) > 50
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert max(samples["values"]["presence_sessions"]) > 100


@pytest.mark.nightly
def test_a_minute_of_bad_networks() -> None:
    table = run("benchmarks.networks", "--phones", "2", "--minutes", "0.4", "--seed", "1")
    assert table.count("| office Wi-Fi |") == table.count("| train |") == 4
    assert "| office Wi-Fi | 30 / 5 / 12 | 0.0 | 0.0 (0) | 0.0 (0) |" in table
