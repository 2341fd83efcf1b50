"""What the processes of a server cost: the whole tree, and its Redis apart (Linux, /proc)."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench import measures

REDIS_NAMES = ("valkey-server", "redis-server")


@dataclass(frozen=True)
class Memory:
    """Bytes of some processes: proportional (a shared page divided among its users) and resident."""

    pss: int
    rss: int


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that are there, and those that they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, _text(task).split()):
            found += [child, *children(child)]
    return found


def server_processes(pid: int) -> list[int]:
    """Return the process and all below it, without a Redis."""
    return [each for each in (pid, *children(pid)) if _name(each) not in REDIS_NAMES]


def redis_process(pid: int) -> int | None:
    """Return the Redis that the process started, if it did."""
    return next((each for each in children(pid) if _name(each) in REDIS_NAMES), None)


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Return the processor time of each process, all threads; 0.0 of one that is gone."""
    spent = dict.fromkeys(pids, 0.0)
    for pid in spent:
        with contextlib.suppress(OSError):
            spent[pid] = measures.cpu_seconds(pid)
    return spent


def memory(pids: Iterable[int]) -> Memory:
    """Return the memory of those of them that are still there, together."""
    sizes = {"Pss": 0, "Rss": 0}
    for pid in pids:
        for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
            name, _, size = line.partition(":")
            if name in sizes:
                sizes[name] += int(size.split()[0]) * 1024
    return Memory(sizes["Pss"], sizes["Rss"])


def _name(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/comm")).strip()


def _text(path: Path) -> str:
    """Return what stands there; nothing if the process is gone."""
    try:
        return path.read_text()
    except OSError:
        return ""
