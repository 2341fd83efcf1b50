"""What a process holds at a moment: memory, descriptors, threads, and clients of its Redis (Linux)."""

import os
from pathlib import Path
from typing import Any, NamedTuple


class Figures(NamedTuple):
    rss_kb: int
    descriptors: int
    threads: int
    clients: int


def figures(pid: int, redis: Any, *, others: int = 1) -> Figures:
    """Return the figures of a process; `others`: clients of Redis that are not its own."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Figures(
        int(status["VmRSS"].split()[0]),
        len(os.listdir(f"/proc/{pid}/fd")),
        int(status["Threads"]),
        len(redis.client_list()) - others,
    )
