"""Workers that share a timer and are killed: a small run."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["queue", "ring"])
def test_a_small_run_keeps_every_promise(kind: str, tmp_path: Path) -> None:
    sizes = ["--events", "200", "--slot-events", "200", "--workers", "2", "--limit", "20", "--span", "0.3"]
    kills = ["--kill-every", "0.1", "--handling", "0.01", "--lease", "0.3", "--tick", "0.02"]
    # A process of its own: it forks, which none with threads should.
    command = [sys.executable, "-m", "loadtest.timers.workers", "--kind", kind, *sizes, *kills]
    run = subprocess.run(
        [*command, "--out", str(tmp_path / "table.md")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    print((tmp_path / "table.md").read_text())
