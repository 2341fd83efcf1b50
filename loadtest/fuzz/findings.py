"""Inputs that a target failed with: one for each way in which it does."""

import hashlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


class Catcher:
    """Runs a target, and keeps the shortest input for each way in which it fails.

    Args:
        run: raises if there is something wrong with the input.
        into: the directory for the inputs, named by where the exception came from.
    """

    def __init__(self, run: Callable[[bytes], None], into: Path) -> None:
        self._run = run
        self._into = into
        self._shortest: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        try:
            self._run(data)
        except Exception as error:
            self._keep(error, data)

    def _keep(self, error: Exception, data: bytes) -> None:
        name = way(error)
        if len(data) >= self._shortest.get(name, sys.maxsize):
            return
        if name not in self._shortest:
            traceback.print_exception(error)
        self._shortest[name] = len(data)
        (self._into / name).write_bytes(data)


def way(error: Exception) -> str:
    """Return a name for how a target failed: the same for the same place in the code."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " ".join(f"{Path(frame.filename).stem}:{frame.lineno}" for frame in frames)
    return f"{type(error).__name__}-{hashlib.sha256(places.encode()).hexdigest()[:12]}"
