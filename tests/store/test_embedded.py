"""Embedded servers: what happens when the process is killed."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from presence.common.runtime_dir import live_directories
from presence.store import embedded
from presence.store.embedded import EmbeddedError, EmbeddedRedis, embedded_redis
from presence.store.redis_client import open_client
from tests.support.waiting import wait_for

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


def test_a_start_without_a_descriptor_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        EmbeddedRedis()
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


LOCKED = """
import os, signal, sys, time
from pathlib import Path
from presence.store.embedded import EmbeddedRedis
server = EmbeddedRedis(Path(sys.argv[1]))
if sys.argv[2] == "worker drains" and os.fork() == 0:
    os.close(1)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "Redis stopped":
    server.process.send_signal(signal.SIGSTOP)
print(server.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def leave(tmp_path: Path, folder: Path) -> Iterator[Callable[[str], int]]:
    """Run a server with data and kill it; return the process of its Redis. A worker ends with the test."""
    reader, writer = os.pipe()

    def run(left: str) -> int:
        command = [sys.executable, "-c", LOCKED, str(tmp_path / "data"), left]
        killed = subprocess.run(command, stdin=reader, stdout=subprocess.PIPE, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL
        return int(killed.stdout)

    yield run
    os.close(writer)
    os.close(reader)


def test_data_of_a_killed_server_is_free_while_a_worker_of_it_drains(
    tmp_path: Path, leave: Callable[[str], int]
) -> None:
    leave("worker drains")
    with embedded_redis(tmp_path / "data") as server:
        assert server.process.poll() is None


def test_data_that_an_orphaned_redis_has_open_is_refused(tmp_path: Path, leave: Callable[[str], int]) -> None:
    left = leave("Redis stopped")
    try:
        with pytest.raises(EmbeddedError, match="another presence server uses it"):
            EmbeddedRedis(tmp_path / "data")
    finally:
        os.kill(left, signal.SIGKILL)


def test_directory_of_a_killed_server_is_stale_while_a_worker_of_it_drains(
    leave: Callable[[str], int], folder: Path
) -> None:
    leave("worker drains")
    assert live_directories() == []


def test_a_server_may_load_for_longer_than_it_may_stay_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded_redis(tmp_path) as server, open_client(server.url) as client:
        client.mset({f"key-{n}": "x" * 100 for n in range(1000)})
        client.bgrewriteaof()
        wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 1.0)
    monkeypatch.setattr(embedded, "LOADING_REPORT_S", 0.2)
    slow = ("--key-load-delay", "2500", "--loading-process-events-interval-bytes", "1024")
    reported: list[float] = []
    with (
        embedded_redis(tmp_path, slow, on_loading=reported.append) as server,
        open_client(server.url) as client,
    ):
        assert client.dbsize() == 1000
    assert len(reported) > 2
    assert 0 < reported[0] < reported[-1] <= 100


REFUSES = """#!{python}
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--unixsocket") + 1])
listener.listen()
while True:
    with listener.accept()[0] as client:
        client.recv(100)
        client.sendall(b"-ERR not now\\r\\n")
"""


def test_a_server_that_answers_with_errors_only_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "refuses"
    program.write_text(REFUSES.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setattr(embedded, "find_binary", lambda: str(program))
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 1.0)
    with pytest.raises(EmbeddedError, match="did not start"):
        EmbeddedRedis()
