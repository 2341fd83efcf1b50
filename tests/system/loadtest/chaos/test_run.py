"""The command, made small: a short storm on real processes is judged right; a missing guard is found."""

import subprocess
import sys

import pytest

SMALL = (
    *("--seed", "11", "--minutes", "0.1", "--clients", "60", "--times", "1"),
    *("--idle-timeout", "2", "--lease", "1", "--tick", "0.25", "--grace", "0.75"),
)


def chaos(*words: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "loadtest.chaos", *SMALL, *words], capture_output=True, text=True, check=False
    )
    print(run.stdout, run.stderr)
    return run


@pytest.mark.nightly  # the simulation plays the same, in virtual time
@pytest.mark.alone
def test_a_short_storm_breaks_no_promise() -> None:
    kinds = ("stop", "kill", "redis_stop", "flush", "path_drop", "path_hole", "clients_reset", "clients_hole")
    assert chaos("--storm", "8", "--kinds", *kinds).returncode == 0


@pytest.mark.nightly
@pytest.mark.alone
def test_a_guard_that_is_off_is_missed() -> None:
    run = chaos("--storm", "8", "--kinds", "stop", "--guard", "script-decides-transitions")
    assert "script-decides-transitions is missed" in run.stdout
    assert run.returncode == 0
