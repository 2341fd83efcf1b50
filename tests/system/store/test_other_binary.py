"""The store on the Redis of PATH, where the fast tier has the embedded one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.servers import BINARY

ROOT = Path(__file__).parents[3]


@pytest.mark.needs("redis-server")
@pytest.mark.timeout(600)  # all those tests in one
def test_all_tests_of_the_store_pass_on_it() -> None:
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "tests/store"],
        cwd=ROOT,
        env={**others, BINARY: shutil.which("redis-server") or ""},
        capture_output=True,
        text=True,
        check=False,
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
