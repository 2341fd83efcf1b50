"""The node protocol in the simulation: seeds that must keep every promise.

In processes of their own, in which sets of texts have one order, so that a seed is the same run everywhere.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout, run.stderr)
    return run


def test_no_seed_breaks_a_promise() -> None:
    assert simulation("--first", "13", "--seeds", "2").returncode == 0  # the second one with rooms
