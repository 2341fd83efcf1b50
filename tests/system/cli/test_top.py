"""``presence top`` on a terminal, and commands that find a real server."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.servers import free_port
from tests.support.server_process import running_server

pytestmark = pytest.mark.usefixtures("clean_environment")
DEADLINE_S = 30.0
PRESENCE = [sys.executable, "-m", "presence"]
ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory for temporary files that no other server uses, with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="pt-") as path:
        monkeypatch.setenv("TMPDIR", path)
        yield
        assert not list(Path(path).iterdir()), "the servers left nothing"


class Terminal:
    """``presence top`` on a terminal of its own."""

    def __init__(self, *flags: str) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(24, 80)
        self.mode = termios.tcgetattr(self.slave)
        size = {"COLUMNS", "LINES"}  # they would count more than the terminal's own
        inherited = {name: value for name, value in os.environ.items() if name not in size}
        self.process = subprocess.Popen(
            [*PRESENCE, "top", *flags],
            stdin=self.slave,
            stdout=self.slave,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "TERM": "xterm-256color"},
        )

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, pattern: bytes) -> bytes:
        """Return the output up to one that has the pattern; an older one does not count."""
        output = b""
        deadline = time.monotonic() + DEADLINE_S
        while not re.search(pattern, output):
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, output[-2000:]
            output += os.read(self.master, 65_536)
        return output

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


@pytest.mark.usefixtures("folder")
def test_it_draws_updates_survives_a_restart_and_restores_the_terminal(terminals: list[Terminal]) -> None:
    admin = ("--admin", f"127.0.0.1:{free_port()}")
    with running_server(*admin) as server:
        terminals.append(top := Terminal())
        top.read_until(re.escape(ALTERNATE_SCREEN))
        top.read_until(rb"users online 0 ")
        with socket.create_connection(server.address) as client:
            client.sendall(b"\x00\x00\x00\x0c\x93\x01\x01\x81\xa3uid\xa3ann")
            top.read_until(rb"users online 1 ")
            top.read_until(rb"ann  login")
        top.resize(40, 120)
        top.read_until(rb"\r\n[^\x1b\r\n]{120}\r\n")  # lines are padded to the width
    top.read_until(rb"no data since \d\d:\d\d:\d\d \(\d+ s\)")
    with running_server(*admin):
        top.read_until(rb" live")
        os.write(top.master, b"q")
        output = top.read_until(re.escape(NORMAL_SCREEN))
        assert top.process.wait(DEADLINE_S) == 0
    assert b"\x1b[?25h" in output, "the cursor is visible"
    assert termios.tcgetattr(top.slave) == top.mode
    assert top.process.stderr is not None
    assert re.fullmatch(
        r"presence: using the server at 127\.0\.0\.1:\d+ \(process \d+\)\n", top.process.stderr.read()
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("how", ["Ctrl-C", pytest.param("SIGTERM", marks=pytest.mark.nightly)])
def test_it_is_left_cleanly(terminals: list[Terminal], how: str) -> None:
    with running_server("--admin", "127.0.0.1:0"):
        terminals.append(top := Terminal())
        top.read_until(re.escape(ALTERNATE_SCREEN))
        top.read_until(rb"latest events")
        if how == "Ctrl-C":
            os.write(top.master, b"\x03")
        else:
            top.process.send_signal(signal.SIGTERM)
        top.read_until(re.escape(NORMAL_SCREEN))
        assert top.process.wait(DEADLINE_S) == 0
    assert termios.tcgetattr(top.slave) == top.mode


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_commands_find_a_server_until_it_has_ended(workers: str) -> None:
    def count() -> "subprocess.CompletedProcess[str]":
        command = [*PRESENCE, "status", "--count"]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    with running_server("--workers", workers) as server:
        found = count()
        process = server.process.pid
    assert (found.returncode, found.stdout) == (0, "0\n")
    assert found.stderr == f"presence: using the server at {server.host} (process {process})\n"
    assert count().returncode == 2


@pytest.mark.usefixtures("folder")
def test_a_killed_server_is_not_found() -> None:
    command = [*PRESENCE, "serve", "--port", "0", "--no-admin"]
    serve = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert serve.stderr is not None
    with serve.stderr as lines:
        assert next(line for line in lines if line.startswith("ready "))
        serve.kill()
        serve.wait()
    status = subprocess.run(
        [*PRESENCE, "nodes"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "no server of this user runs here" in status.stderr
    with running_server():
        pass  # it removes what the killed one has left
