"""The command, made small: plans and a storm on real processes break no promise; untrue reports are found.

`.ci/nightly` plays all plans with the default times, and all guards.
"""

import subprocess
import sys

import pytest

SMALL = ("--seed", "11", "--minutes", "0.1", "--clients", "60", "--times", "1", "--storm", "8")
QUICK = ("--idle-timeout", "2", "--lease", "1", "--tick", "0.25", "--grace", "0.75")
PLAN = (
    *("--idle-timeout", "3", "--lease", "2", "--tick", "0.5"),
    *("--clients", "200", "--longest", "7", "--storm", "8"),
)


def chaos(*words: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.system.chaos", *words], capture_output=True, text=True, check=False
    )
    print(run.stdout, run.stderr)
    return run


@pytest.mark.nightly
@pytest.mark.parametrize("plan", ["sentinel", "kill", "stall", "cluster"])
def test_a_fault_by_itself_breaks_no_promise(plan: str) -> None:
    assert chaos("--plan", plan, *PLAN).returncode == 0


@pytest.mark.nightly  # the simulation plays the same, in virtual time
@pytest.mark.alone
def test_a_short_storm_breaks_no_promise() -> None:
    kinds = ("stop", "kill", "redis_stop", "flush", "path_drop", "path_hole", "clients_reset", "clients_hole")
    assert chaos(*SMALL, *QUICK, "--kinds", *kinds).returncode == 0


@pytest.mark.alone
def test_the_judge_finds_what_did_not_happen() -> None:
    run = chaos("--seed", "11", "--minutes", "0.1", "--clients", "400", "--guard", "misreports")
    assert "misreports is missed" in run.stdout
    assert run.returncode == 0
