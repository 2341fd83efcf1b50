"""Clients that watch their friends, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.processes import LOCUSTFILE

SMALL = ("--clients", "200", "--friends", "10", "--workers", "2", "--logins", "1000")
SHORT = (
    "--idle-timeout",
    "2",
    "--changes",
    "600",
    "--minutes",
    "0.05",
    "--rest",
    "1",
    "--servers",
    "presence, batch",
)


@pytest.mark.nightly
def test_every_view_and_every_delivery_is_right(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.watches", *SMALL, *SHORT, "--out", str(tmp_path)],
        cwd=LOCUSTFILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (figures,) = json.loads((tmp_path / "watches.json").read_text())["servers"]
    assert figures["views"] > 1000
    assert figures["changes"] > 30
    assert figures["pushes"] >= figures["expected"] > 100
    assert figures["push_bytes"] > 10
    assert 0 < figures["p50_ms"] < figures["p99_ms"]
