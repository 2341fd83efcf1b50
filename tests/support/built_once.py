"""A folder that the first worker that needs it builds, for all workers of a run."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], Path]) -> Path:
    """Return what `build` makes below the folder that it is given; the others wait for it.

    Args:
        name: of the folder.
        build: raises if it cannot; then the next worker tries.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    result = root / f"{name}.built"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_text(str(build(factory.mktemp(name))))
    return Path(result.read_text())
