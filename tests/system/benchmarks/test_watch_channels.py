"""The benchmark of the channels of watched users, small: all ways tell all changes."""

import re
import subprocess
import sys

import pytest

from loadtest.processes import LOCUSTFILE

SMALL = (
    "--transitions",
    "2048",
    "--rounds",
    "1",
    "--batches",
    "64",
    "--listeners",
    "3",
    "--shares",
    "1",
    "--reads",
    "2",
)


@pytest.mark.nightly
def test_every_way_is_measured() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.watch_channels", *SMALL],
        cwd=LOCUSTFILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    sent = [int(each) for each in re.findall(r", (\d+) B \|", run.stdout)]
    by_user, whole = sent
    assert 100 < whole < by_user, "bytes per transition and worker"
    channels, shards = (
        int(each.replace(",", "")) for each in re.findall(r": ([\d,]+)(?=;|\n|$)", run.stdout)[-2:]
    )
    assert shards < channels < 1_100_000
