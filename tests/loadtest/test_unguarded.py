"""The guards that a run can switch off still exist."""

import subprocess
import sys

import pytest

from loadtest.unguarded import GUARDS, SCRIPTS, missing_texts


@pytest.mark.parametrize("guard", SCRIPTS)
def test_the_scripts_have_the_code_of_each_guard(guard: str) -> None:
    assert missing_texts(guard) == []


def test_presence_runs_without_a_guard() -> None:
    command = [sys.executable, "-m", "loadtest.unguarded", GUARDS[0], "serve", "--help"]
    assert "--idle-timeout" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
