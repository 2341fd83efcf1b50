"""The benchmark of rooms, in small: members are right after all changes, and after faults."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.processes import LOCUSTFILE


def run(*words: str, out: Path) -> dict[str, object]:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.rooms", *words, "--out", str(out)],
        cwd=LOCUSTFILE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, object] = json.loads((out / "rooms.json").read_text())
    return found


@pytest.mark.nightly
def test_every_change_is_applied_and_measured(tmp_path: Path) -> None:
    some = ("--parts", "costs,live,silence", "--users", "600", "--shards", "2")
    found = run(*some, "--rates", "100", "--seconds", "2", out=tmp_path)
    costs, live = found["costs"], found["live"]
    assert isinstance(costs, list)
    assert isinstance(live, list)
    assert len(costs) == 3
    assert all(0 < each["joins"]["redis_s"] < 5 and 30 < each["member_bytes"] < 300 for each in costs)
    assert live[0]["changes"] > 100
    assert found["silence"]


@pytest.mark.nightly
def test_every_view_is_right_and_lags_are_measured(tmp_path: Path) -> None:
    some = ("--parts", "push", "--clients", "200", "--workers", "2", "--shards", "2")
    found = run(*some, "--push-rates", "40", "--seconds", "3", out=tmp_path)["push"]
    assert isinstance(found, list)
    (figures,) = found
    assert not figures["broken"]
    assert figures["causes"]["move"]["deliveries"] > 50
    for lags in (figures["games"], figures["lobby"]):
        assert lags["deliveries"] > 50
        assert 0 < lags["p50_ms"] <= lags["p99_ms"] <= lags["max_ms"]


@pytest.mark.nightly
def test_members_and_stream_are_right_after_each_fault(tmp_path: Path) -> None:
    found = run("--faults", "--users", "300", "--fault-rate", "50", out=tmp_path)["faults"]
    assert isinstance(found, list)
    assert len(found) == 3
    assert all(each["members"] > 50 and not each["broken"] for each in found)
