"""What processes and this machine use up.

By psutil where it can. Beyond it: processor time to the nanosecond, how often all threads of a process
have gone to sleep, and the share of memory that belongs to no file.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self

import psutil

REDIS_NAMES = ("valkey-server", "redis-server")
SAMPLE_INTERVAL_S: Final = 0.1
WINDOW_SAMPLES: Final = 10  # a second: a process that was stopped may also have to catch up
PROGRAM_TIMEOUT_S: Final = 10.0  # until a program has said its version: facts must not cost the results
NOT_INSTALLED: Final = "not installed"
_PACKAGES = ("presence-server", "trio", "msgpack", "uvloop")
_PROGRAMS = {"gcc": "--version", "mosquitto": "-h", "nats-server": "--version"}


@dataclass(frozen=True)
class Memory:
    """Bytes of some processes.

    Attributes:
        rss: resident.
        pss: each shared page divided among its processes.
        anonymous: the same without pages of files, whose share depends on other processes with the same
            libraries.
    """

    rss: int
    pss: int
    anonymous: int = 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, ended ones too, to the nanosecond."""
    # The id that clock_getcpuclockid(3) gives: the process in the upper bits, and 2 for the
    # scheduler's count.
    return time.clock_gettime(~pid << 3 | 2)


def cpu_seconds_by_pid(pids: Iterable[int]) -> dict[int, float]:
    """Return the CPU time of each process; 0.0 for one that has ended."""
    spent = dict.fromkeys(pids, 0.0)
    for pid in spent:
        with contextlib.suppress(OSError):
            spent[pid] = cpu_seconds(pid)
    return spent


def redis_cpu_seconds(client: Any) -> float:
    """Return the CPU time of a Redis, by its own account."""
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def redis_calls(client: Any) -> dict[str, int]:
    """Return how often a Redis has called each command since its start, but for INFO."""
    stats = client.info("commandstats").items()
    return {name: each["calls"] for name, each in stats if not name.startswith("cmdstat_info")}


def count_wakes(pid: int) -> int:
    """Return how often threads of a process have gone to sleep voluntarily, to be woken again."""
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    return sum(_fields(task).get("voluntary_ctxt_switches", 0) for task in tasks)


def memory(*pids: int) -> Memory:
    """Return the memory of those of the processes that still run, together."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(_fields(Path(f"/proc/{pid}/smaps_rollup")))
    names = ("Rss", "Pss", "Pss_Anon")
    return Memory(*(sum(fields.get(name, 0) for fields in found) * 1024 for name in names))


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the peak memory of a process since `forget_peak`."""
    return _fields(Path(f"/proc/{pid}/status"))["VmHWM"] * 1024


def _fields(file: Path) -> dict[str, int]:
    rows = [line.split() for line in file.read_text().splitlines()]
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def server_processes(pid: int) -> list[int]:
    """Return the process and its descendants, without a Redis."""
    found = [pid]
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child.pid] if child.name() not in REDIS_NAMES else []
    return found


class Stolen:
    """Time in which others had the processor, sampled while entered.

    On a shared machine a process may stand still while another machine, or another process, has its CPU, so
    promises to the tenth of a second hold apart from that time.

    Args:
        look: returns what each CPU has lost since the machine started, seconds; by default what the
            hypervisor gave to other machines.
        pids: processes whose waits for a CPU count as well.

    Attributes:
        worst_s: the most that one CPU lost, and these processes waited, within a second.
    """

    def __init__(self, look: Callable[[], list[float]] | None = None, *, pids: Iterable[int] = ()) -> None:
        self.worst_s = 0.0
        self._read_stolen = look or _stolen_s
        self._pids = [*pids]
        self._window: deque[list[float]] = deque(maxlen=WINDOW_SAMPLES + 1)
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        waited_s = sum(map(_waited_s, self._pids))
        self._window.append([stolen_s + waited_s for stolen_s in self._read_stolen()])
        spans = zip(self._window[0], self._window[-1], strict=False)  # processors may come and go
        self.worst_s = max([self.worst_s, *(last - first for first, last in spans)])

    def _run(self) -> None:
        self.sample()
        while not self._finished.wait(SAMPLE_INTERVAL_S):
            self.sample()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._finished.set()
        self._thread.join()
        self.sample()


def _stolen_s() -> list[float]:
    return [getattr(each, "steal", 0.0) for each in psutil.cpu_times(percpu=True)]


def _waited_s(pid: int) -> float:
    """Return for how long the threads of a process have been ready, and waited for a CPU."""
    waited_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # it has ended, or the kernel does not say
            waited_ns += int(thread.read_text().split()[1])
    return waited_ns / 1e9


def machine_facts() -> dict[str, str]:
    """Return what the results depend on, by name."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        **{name: _program(name, flag) for name, flag in _PROGRAMS.items()},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _program(name: str, flag: str) -> str:
    if not (path := shutil.which(name)):
        return NOT_INSTALLED
    try:
        result = subprocess.run(
            [path, flag], capture_output=True, text=True, check=False, timeout=PROGRAM_TIMEOUT_S
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return "?"
    words = (result.stdout or result.stderr).partition("\n")[0].split()
    return next((word.lstrip("v") for word in reversed(words) if word.lstrip("v")[:1].isdigit()), "?")


def require_linux() -> None:
    """Exit unless CPU time and memory can be read here."""
    if sys.platform != "linux":
        raise SystemExit("the benchmark reads /proc, so it needs Linux")
