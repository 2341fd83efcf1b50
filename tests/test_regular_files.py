"""Files are opened at once, or refused: nothing waits for whoever writes a FIFO."""

import os
from pathlib import Path

import pytest

from presence.files import opened


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
