"""A Redis or Valkey that a test can kill and start again at the same address."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from presence.embedded import find_binary
from presence.store.client import open_client

START_TIMEOUT_S = 8.0
BINARY = "TESTS_REDIS_BINARY"  # environment variable: one of `BINARIES`


BINARIES: dict[str, Callable[[], str | None]] = {
    "embedded": find_binary,
    "redis-server": lambda: shutil.which("redis-server"),
}


class Server:
    """A server on a Unix socket in `folder`; with `keep` its data survives a kill. `extra`: its arguments."""

    def __init__(self, binary: str, folder: Path, *, keep: bool = False, extra: tuple[str, ...] = ()) -> None:
        self._socket = folder / "redis.sock"
        self._command = [
            binary,
            *("--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder), "--save", ""),
            *("--appendonly", "yes" if keep else "no", "--appendfsync", "always"),
            *("--enable-debug-command", "yes"),
            *extra,
        ]
        self._log = folder / "server.log"
        self.url = f"unix://{self._socket}"
        self.client = open_client(self.url)
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, self._log.read_text()[-500:]
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.005)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(self._socket))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def change_history(self) -> None:
        """Take a new replication id, as a failover or a restart with all data does."""
        self.client.execute_command("DEBUG", "CHANGE-REPL-ID")  # type: ignore[no-untyped-call]  # redis-py's

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.client.close()
        self.kill()
