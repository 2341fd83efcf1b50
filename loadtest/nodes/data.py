"""A Redis that can be stopped, killed and started again at the same address, and what stands in it."""

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtest.nodes.records import Records
from presence.embedded import find_binary
from presence.store.client import open_client

START_TIMEOUT_S = 8.0
LOOK_S = 0.005


class Data(Records):
    """A server on a Unix socket, with a directory of its own.

    Args:
        keep: whether every write survives a kill (append-only file); else only what `save` has written does.

    Attributes:
        path: of the socket.
        url: the same as an address.
        client: a connection to it.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nodes-"))
        self.path = str(self._folder / "redis.sock")
        self._command = [
            find_binary(),
            *("--port", "0", "--unixsocket", self.path, "--dir", str(self._folder), "--save", ""),
            *("--appendonly", "yes" if keep else "no", "--appendfsync", "always"),
            *("--repl-diskless-sync-delay", "0"),
        ]
        self.url = f"unix://{self.path}"
        self.client: Any = open_client(self.url)  # redis-py types its answers for all decodings at once
        super().__init__(lambda _key: self.client)
        self.start()

    def __enter__(self) -> "Data":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.thaw()
        self.client.close()
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers with its data loaded."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit("Redis did not start")
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(self.path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and connections stay as they are."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self._process.send_signal(signal.SIGCONT)
