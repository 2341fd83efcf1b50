"""The Redis of a trial: it can be killed, and come back empty, with its data, or without its last second."""

import os
from pathlib import Path

from loadtest.nodes.data import Data


class Server(Data):
    """A private Redis.

    Args:
        keep: whether it keeps its data in a file, which is synced once a second; else in memory only.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        super().__init__(keep=keep)

    def __enter__(self) -> "Server":
        return self

    def start(self) -> None:
        """See `Data`."""
        super().start()
        self.client.connection_pool.disconnect()
        if self._keep:
            self.client.config_set("appendfsync", "everysec")

    def written_bytes(self) -> int:
        """Return the size of its file of changes."""
        return sum(file.stat().st_size for file in self._changes())

    def cut(self, size: int) -> None:
        """While it is away: take from its file what was written beyond a size, as a power cut may."""
        (file,) = self._changes()
        os.truncate(file, size)

    def _changes(self) -> list[Path]:
        return list(Path(self.path).parent.glob("appendonlydir/*.incr.aof"))
