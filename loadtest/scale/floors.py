"""Six C floors beside six workers: the same load on servers that only receive."""

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest import bench

SOURCE = Path(bench.__file__).with_name("floor.c")


@dataclass(frozen=True)
class Floors:
    """Floors that run: where they listen, and their processes."""

    addresses: list[tuple[str, int]]
    pids: list[int]


def why_not() -> str:
    """Return why no floor can be built here; nothing if one can."""
    return "" if shutil.which("gcc") else "gcc is not on PATH"


@contextlib.contextmanager
def running_floors(count: int) -> Iterator[Floors]:
    """Build the floor and run so many of it, a port each, for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder, contextlib.ExitStack() as stack:
        binary = Path(folder) / "floor"
        subprocess.run(["gcc", "-O2", "-o", str(binary), str(SOURCE)], check=True)
        running = [stack.enter_context(_running(binary)) for _ in range(count)]
        yield Floors([address for address, _ in running], [pid for _, pid in running])


@contextlib.contextmanager
def _running(binary: Path) -> Iterator[tuple[tuple[str, int], int]]:
    process = subprocess.Popen([str(binary)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready = process.stderr.readline()
        if not ready.startswith("ready "):
            raise SystemExit(f"a floor did not start: {ready.strip()}")
        host, _, port = ready.split()[1].rpartition(":")
        yield (host, int(port)), process.pid
    finally:
        process.terminate()
        process.communicate()
