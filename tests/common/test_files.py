"""Connections are derived from the file limit; a limit that is too low is reported."""

import os
import resource
from pathlib import Path

import pytest

from presence.common import files
from presence.common.files import open_regular_file
from presence.server import process_stats
from presence.server.process_stats import ProcessStats


class FakeLimit:
    """The file limit of the process, soft and hard."""

    def __init__(self, soft: int, hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = (soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda _which: self.now)
        monkeypatch.setattr(resource, "setrlimit", lambda _which, both: setattr(self, "now", both))


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = FakeLimit(1024, 20_000, monkeypatch)
    files.raise_file_limit(0)
    assert limit.now == (20_000, 20_000)


@pytest.mark.parametrize(("hard", "fit"), [(20_000, 19_000), (1_048_576, 1_047_576), (1024, 960)])
def test_connections_are_the_limit_less_a_reserve(
    hard: int, fit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLimit(hard, hard, monkeypatch)
    assert files.raise_file_limit(0) == (hard, fit)
    assert files.raise_file_limit(500) == (hard, 500)


def test_a_boundless_limit_does_not_make_a_boundless_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeLimit(1024, 2**30, monkeypatch)
    assert files.raise_file_limit(0) == (2**30, 1_047_576)
    assert files.raise_file_limit(2_000_000) == (2**30, 2_000_000)


@pytest.mark.parametrize(
    ("hard", "wish", "why"), [(1024, 1000, "max_connections: 1000 does not fit"), (64, 0, "too low")]
)
def test_too_many_connections_are_refused_with_the_numbers(
    hard: int, wish: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeLimit(hard, hard, monkeypatch)
    with pytest.raises(files.FileLimitError, match=why):
        files.raise_file_limit(wish)


# Files that are opened immediately, or not at all


def test_anything_but_a_regular_file_is_refused_immediately_and_closed(tmp_path: Path) -> None:
    fifo, file = tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.write_bytes(b"text")
    with open_regular_file(file) as found:
        assert found.read() == b"text"
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for path in (fifo, tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="Not a regular file") as caught:
            open_regular_file(path)
        assert caught.value.filename == str(path)
    assert before in (0, len(os.listdir("/proc/self/fd")))


# Resources of a process


def test_process_stats_are_those_of_this_process_and_each_descriptor_counts() -> None:
    taken = ProcessStats()
    report = taken.report(0)
    assert 5_000_000 < report["rss_bytes"] < 10**11
    assert 3 <= report["open_fds"] <= report["max_fds"]
    assert report["cpu_user_s"] > 0
    pair = os.pipe()
    counted = taken.report(2)["open_fds"]
    for fd in pair:
        os.close(fd)
    assert counted == report["open_fds"] + 2


def test_without_proc_connections_are_added_up_and_the_peak_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process_stats, "_counted", lambda: 0)
    monkeypatch.setattr(process_stats, "_MEMORY", tmp_path / "nothing")
    taken = ProcessStats()
    assert taken.report(100)["open_fds"] == taken.report(0)["open_fds"] + 100
    assert 5_000_000 < taken.report(0)["rss_bytes"] < 10**11
