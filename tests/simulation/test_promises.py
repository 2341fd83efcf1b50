"""The node protocol in the simulation: seeds that must keep every promise, and guards that must be missed.

In processes of their own, in which sets of texts have one order, so that a seed is the same run everywhere.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


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
    assert simulation("--seeds", "12").returncode == 0


def test_displacements_beyond_the_inbox_are_made_good_in_time() -> None:
    # A crowd moves on while its process is stopped, and shards are busy whenever it could compare.
    assert simulation("--first", "18799", "--seeds", "1").returncode == 0


def test_each_guard_switched_off_is_missed() -> None:
    # If one is not found: look with --guard NAME --seeds 1000, and note the seed in `guards.py`.
    assert simulation("--guards", "--known").returncode == 0
