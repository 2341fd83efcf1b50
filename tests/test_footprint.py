"""What a process takes from its machine."""

import os
from pathlib import Path

import pytest

from presence import footprint
from presence.footprint import Footprint


def test_figures_are_those_of_this_process() -> None:
    report = Footprint().report(0)
    assert 5_000_000 < report["rss_bytes"] < 10**11
    assert 3 <= report["open_fds"] <= report["max_fds"]
    assert report["cpu_user_s"] > 0


def test_each_descriptor_is_counted() -> None:
    taken = Footprint()
    before = taken.report(0)["open_fds"]
    pair = os.pipe()
    counted = taken.report(2)["open_fds"]
    for fd in pair:
        os.close(fd)
    assert counted == before + 2


def test_where_the_kernel_does_not_count_connections_are_added_to_those_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(footprint, "_counted", lambda: 0)
    taken = Footprint()
    assert taken.report(100)["open_fds"] == taken.report(0)["open_fds"] + 100


def test_where_the_system_does_not_tell_what_it_holds_the_most_so_far_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(footprint, "_MEMORY", tmp_path / "nothing")
    assert 5_000_000 < Footprint().report(0)["rss_bytes"] < 10**11
