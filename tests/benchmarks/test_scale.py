"""The exit status of a run at scale reports its failures."""

from collections import Counter

import pytest

from benchmarks.scale.__main__ import parse
from benchmarks.scale.fleet import FleetStatus
from benchmarks.scale.play import end_failures, hold_failures, ramp_failures
from benchmarks.scale.verdict import Ends


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (ramp_failures("floors", FleetStatus(online=10), 10), ""),
        (ramp_failures("floors", FleetStatus(online=9), 10), "floors: only 9 of 10 logged in"),
        (hold_failures("hold", 0, 0, 0), ""),
        (hold_failures("hold", 1, 0, 0), "hold: 1 connections lost"),
        (hold_failures("hold", 0, 1, 0), "hold: 1 offline events"),
        (hold_failures("hold", 0, 0, 1), "hold: 1 keepalives not taken"),
        (end_failures("end", Ends(clients=10, offline=10, first_to_last_s=9.0), None), ""),
        (end_failures("end", Ends(Counter({"late": 1}), clients=10), None), "end: 1 x late"),
        (end_failures("end", Ends(first_to_last_s=5.0), 5.0), ""),
        (end_failures("end", Ends(first_to_last_s=5.01), 5.0), "end: 5.01 s from first to last event"),
    ],
)
def test_broken_promises_are_reported(broken: list[str], words: str) -> None:
    assert broken == ([words] if words else [])


@pytest.mark.parametrize("beats", [("12", "30"), ("28.5", "2")])
def test_keepalives_no_more_frequent_than_the_time_out_are_refused(beats: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--beat", *beats, "--idle-timeout", "30", "--last-beat", "2"])


@pytest.mark.parametrize(
    "words",
    [
        ["--connections", "0"],
        ["--hold", "nan"],
        ["--tick", "-1"],
        ["--connections", "3", "--processes", "4"],
        ["--connections", "3", "--processes", "1", "--silent", "4"],
    ],
)
def test_sizes_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
