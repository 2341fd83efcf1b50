"""Runs `presence` in a process that lacks something: ``python -m tests.support.starved KIND AMOUNT WORDS…``.

The interpreter has started before the scarcity begins, so what fails is the program's own.

threads      AMOUNT further threads can be started; then a start fails as it does at a limit of the kernel.
descriptors  AMOUNT further files can be open (RLIMIT_NOFILE).
memory       AMOUNT further MB can be mapped (RLIMIT_AS).
nothing      There is no scarcity.
"""

import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

MB = 1_000_000


def starve_threads(amount: int) -> None:
    start, left = threading.Thread.start, [amount]

    def limited(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    replaced: Any = threading.Thread
    replaced.start = limited


def starve_descriptors(amount: int) -> None:
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + amount,) * 2)


def starve_memory(amount: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + amount * MB,) * 2)


STARVE: dict[str, Callable[[int], None]] = {
    "threads": starve_threads,
    "descriptors": starve_descriptors,
    "memory": starve_memory,
    "nothing": lambda _amount: None,
}


def main() -> int:
    from presence.cli.main import main as run  # noqa: PLC0415 - it is loaded before the scarcity begins

    kind, amount, *words = sys.argv[1:]
    STARVE[kind](int(amount))
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
