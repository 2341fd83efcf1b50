"""The Redis of a run: it can forget everything, or what it did since a moment."""

import contextlib
import shutil
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
        return self.folder / "appendonlydir"

    def keep(self) -> None:
        """Keep what it has now, to go back to. Nothing may be written meanwhile."""
        kept = self.folder / KEPT
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._files, kept)

    def forget(self, *, back: bool) -> None:
        """Before it is started again: forget everything, or what it did since `keep`."""
        shutil.rmtree(self._files)
        if back:
            shutil.move(self.folder / KEPT, self._files)

    def compact(self) -> None:
        """Let it write its file anew, which has grown with every change."""
        with contextlib.suppress(Exception):  # one is under way
            self.client.bgrewriteaof()

    def offset(self) -> int:
        """Return the size of its file of changes in bytes."""
        return int(self.client.info("persistence")["aof_current_size"])
