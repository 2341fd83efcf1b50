"""Connections are derived from the file limit; a limit that is too low is named."""

import os
import resource
from pathlib import Path

import pytest

from presence import files, footprint
from presence.files import opened
from presence.footprint import Footprint


class FakeLimit:
    """What the process may open, soft and hard."""

    def __init__(self, soft: int, hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda _which, both: setattr(self, "now", both))


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = FakeLimit(1024, 20_000, monkeypatch)
    files.claim(0)
    assert limit.now == (20_000, 20_000)


@pytest.mark.parametrize(("hard", "fit"), [(20_000, 19_000), (1_048_576, 1_047_576), (1024, 960)])
def test_connections_are_the_limit_less_a_reserve(
    hard: int, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLimit(hard, hard, monkeypatch)
    assert files.claim(0) == (hard, fit)
    assert files.claim(500) == (hard, 500)


def test_a_larger_wish_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(1024, 1024, monkeypatch)
    with pytest.raises(files.FileLimitError, match="max_connections: 1000 do not fit"):
        files.claim(1000)


def test_a_limit_with_no_room_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(64, 64, monkeypatch)
    with pytest.raises(files.FileLimitError, match="too low"):
        files.claim(0)


# Files that are opened at once, or not at all


def test_a_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"text")
    with opened(path) as file:
        assert file.read() == b"text"


def test_what_is_no_regular_file_is_refused_at_once_and_left_closed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for path in (fifo, tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="Not a regular file") as caught:
            opened(path)
        assert caught.value.filename == str(path)
    assert before in (0, len(os.listdir("/proc/self/fd")))


# What a process takes from its machine


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
