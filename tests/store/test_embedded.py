"""Embedded servers: what happens when the process is killed."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.common.runtime_dir import live_directories
from presence.store.embedded import embedded_redis

KILLED = """
import os, signal
from presence.store.embedded import EmbeddedRedis
server = EmbeddedRedis()
server.process.kill()
server.process.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's directory for temporary files, with a name short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="pe-"))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    shutil.rmtree(path)


def test_files_of_a_killed_server_are_ignored_and_removed_by_the_next_start(folder: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left not in live_directories()
    with embedded_redis() as server:
        assert not left.exists()
        assert server.process.poll() is None
    assert list(folder.iterdir()) == []


OF_ANOTHER_USER = ["of another user"] if os.geteuid() == 0 else []  # only root can change an owner


@pytest.mark.parametrize("kind", ["no lock", "open to others", "a link", *OF_ANOTHER_USER])
def test_foreign_files_are_ignored_and_left_alone(folder: Path, kind: str) -> None:
    other = folder / "presence-other"
    real = folder / "real" if kind == "a link" else other
    real.mkdir(mode=0o700)
    lock = real / ("else" if kind == "no lock" else "lock")
    lock.touch()
    if kind == "open to others":
        real.chmod(0o755)
    if kind == "of another user":
        os.chown(real, 12345, -1)
    if kind == "a link":
        other.symlink_to(real)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert other not in live_directories()
    with embedded_redis():
        assert lock.exists()
