"""Embedded servers: how they are found, and what happens when the process is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.cli.main import main
from presence.store.embedded import announced, embedded_redis

KILLED = """
import os, signal
from presence.store.embedded import EmbeddedRedis
server = EmbeddedRedis()
server.announce()
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
    monkeypatch.delenv("PRESENCE_REDIS", raising=False)
    yield path
    shutil.rmtree(path)


def test_commands_find_the_only_announced_redis(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_redis() as quiet, embedded_redis() as server:
        assert announced() == []
        server.announce()
        assert main(["status", "--count"]) == 0
        quiet.announce()
        assert main(["status", "--count"]) == 2, "ambiguous"
        error = capsys.readouterr().err
    assert quiet.url in error
    assert server.url in error
    assert main(["status", "--count"]) == 2
    assert "status needs the servers' Redis: give --redis URL or PRESENCE_REDIS" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_files_of_a_killed_server_are_ignored_and_removed_by_the_next_start(folder: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert announced() == []
    with embedded_redis() as server:
        assert not left.exists()
        assert server.process.poll() is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["no lock", "open to others", "a link", "of another user"])
def test_foreign_files_are_left_alone(folder: Path, kind: str) -> None:
    other = folder / "presence-other"
    real = folder / "real" if kind == "a link" else other
    real.mkdir(mode=0o700)
    (real / "serves").touch()
    if kind != "no lock":
        (real / "lock").touch()
    if kind == "open to others":
        real.chmod(0o755)
    if kind == "of another user" and os.geteuid() == 0:  # only root can change its owner
        os.chown(real, 12345, -1)
    if kind == "a link":
        other.symlink_to(real)
    with embedded_redis():
        assert announced() == []
    assert (real / "serves").exists()
