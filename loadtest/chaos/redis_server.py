"""The Redis of a run: it can forget everything, or what it did since a moment."""

import contextlib
import shutil
import socket
from pathlib import Path

from loadtest.nodes.data import Data

KEPT = "kept"
PATIENCE_S = 0.2


class Store(Data):
    """A `Data` that keeps all over a kill, unless it is to forget."""

    def __init__(self) -> None:
        super().__init__(keep=True)

    @property
    def _files(self) -> Path:
        return Path(self.path).parent / "appendonlydir"

    def __enter__(self) -> "Store":
        return self

    def start(self) -> None:
        """See `Data`; connections to the one before are closed."""
        super().start()
        self.client.connection_pool.disconnect()

    def keep(self) -> None:
        """Keep what it has now, to go back to. Nothing may be written meanwhile."""
        kept = self._files.parent / KEPT
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._files, kept)

    def forget(self, *, back: bool) -> None:
        """Before it is started again: forget everything, or what it did since `keep`."""
        shutil.rmtree(self._files)
        if back:
            shutil.move(self._files.parent / KEPT, self._files)

    def compact(self) -> None:
        """Let it write its file anew, which has grown with every change."""
        with contextlib.suppress(Exception):  # one is under way
            self.client.bgrewriteaof()

    def answers(self) -> bool:
        """Whether it answers within `PATIENCE_S`."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(PATIENCE_S)
            probe.connect(self.path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def offset(self) -> int:
        """Return the size of its file of changes in bytes."""
        return int(self.client.info("persistence")["aof_current_size"])

    def errors(self, name: str) -> int:
        """Return how many calls it has refused with an error of that name since its start."""
        stats = self.client.info("errorstats")
        return int(stats.get(f"errorstat_{name}", {"count": 0})["count"])
