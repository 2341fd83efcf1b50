"""The types of everything, with every library that any of it uses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)  # type checking is slow the first time
def test_types_are_right() -> None:
    mypy = [sys.executable, "-m", "mypy"]
    run = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
