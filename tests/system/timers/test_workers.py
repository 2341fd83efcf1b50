"""Workers that share a timer and are killed: a small run."""

import subprocess
import sys


def test_a_small_run_keeps_every_promise() -> None:
    sizes = ["--events", "200", "--workers", "2", "--limit", "20", "--span", "0.3"]
    kills = ["--kill-every", "0.1", "--handling", "0.01", "--lease", "0.3", "--tick", "0.02"]
    # A process of its own: it forks, which none with threads should.
    command = [sys.executable, "-m", "tests.system.timers.workers", *sizes, *kills]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("missing 0  early 0") == 6
    assert all(("kills 0 " in line) != ("with kills" in line) for line in run.stdout.splitlines())
