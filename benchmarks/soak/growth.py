"""``python -m benchmarks.soak.growth FOLDER serve …``: `presence` that says at SIGUSR1 what its objects take.

Each process then writes the bytes of its objects, by type, as a file into the folder. Objects that the
collector does not track, such as texts, count once each if one that it tracks refers to them. What was loaded
before the server began is frozen, and not among them. That takes a server of 1,300 sessions a fraction of a
second; memory that grows without any type is the allocator's, or that of a library in C.
"""

import gc
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from loadtest.outcome import markdown
from loadtest.servers import PresenceServer, wait_for

SIGNAL: Final = signal.SIGUSR1  # the server itself uses SIGUSR2
TIMEOUT_S: Final = 20.0
NAMED: Final = 12  # types in the table
ALL: Final = "all objects"


def bytes_by_type() -> Counter[str]:
    """Return what the objects of this process take, by type."""
    found: Counter[str] = Counter()
    untracked: set[int] = set()
    for each in gc.get_objects():
        found[_name(each)] += sys.getsizeof(each, 0)
        for part in gc.get_referents(each):
            if not gc.is_tracked(part) and id(part) not in untracked:
                untracked.add(id(part))
                found[_name(part)] += sys.getsizeof(part, 0)
    found[ALL] = found.total()
    return found


def _name(thing: object) -> str:
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def ask(server: PresenceServer, folder: Path) -> Counter[str]:
    """Return what the objects of all workers of such a server take.

    Raises:
        TimeoutError: a process does not say.
    """
    pids = [*server.workers().values()] or [server.process.pid]
    found: Counter[str] = Counter()
    for pid in pids:
        path = folder / f"{pid}.json"
        path.unlink(missing_ok=True)
        os.kill(pid, SIGNAL)
        if not wait_for(path.exists, TIMEOUT_S):
            raise TimeoutError(f"process {pid} has not said what its objects take")
        found.update(json.loads(path.read_text()))
    return found


def table(first: Counter[str], last: Counter[str]) -> str:
    """Return the types that have grown most, in Markdown."""
    growth = {name: last[name] - first[name] for name in {*first, *last}}
    rows: Iterable[tuple[str, str, str]] = (
        (name, f"{last[name] / 1000:,.1f}", f"{growth[name] / 1000:+,.1f}")
        for name in sorted(growth, key=lambda name: (name != ALL, -growth[name], name))[: NAMED + 1]
    )
    return markdown("objects by type | kB at the end | growth since the warm-up, kB", rows)


def main() -> int:
    from presence.cli.main import main as presence  # noqa: PLC0415 - only the server needs it

    folder = Path(sys.argv[1])

    def write(*_: object) -> None:
        path = folder / f"{os.getpid()}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(bytes_by_type()))
        part.rename(path)

    signal.signal(SIGNAL, write)  # workers are forked, and have it, too
    return presence(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
