"""What the processes of a server cost: the whole tree, and its Redis apart (Linux, /proc)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def server_processes(pid: int) -> list[int]:
    """Return the process and all below it, without a Redis."""
    return [each for each in (pid, *children(pid)) if _name(each) not in REDIS_NAMES]


def redis_process(pid: int) -> int | None:
    """Return the Redis that the process started, if it did."""
    return next((each for each in children(pid) if _name(each) in REDIS_NAMES), None)


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Return the processor time of each process, all threads, from the scheduler's nanoseconds."""
    return {
        pid: sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        / 1e9
        for pid in pids
    }


def memory(pids: Iterable[int]) -> Memory:
    """Return the memory of all of them together."""
    pss = rss = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
        pss += sizes["Pss"] * 1024
        rss += sizes["Rss"] * 1024
    return Memory(pss, rss)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
