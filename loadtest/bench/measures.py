"""What the kernel says of a process and of this machine."""

import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("trio", "msgpack", "uvloop")
_PROGRAMS = {"gcc": "--version", "mosquitto": "-h", "nats-server": "--version"}


@dataclass(frozen=True)
class Footprint:
    """Bytes of a process: resident; and those of no file, each shared page divided among those who share it.

    The pages of files are left out of the second, for their share changes with every other process that comes
    or goes and has the same libraries.
    """

    rss: int
    pss: int


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, ended ones too, to the nanosecond."""
    # The id that clock_getcpuclockid(3) gives: the process in the upper bits, and 2 for the
    # scheduler's count.
    return time.clock_gettime(~pid << 3 | 2)


def wakes(pid: int) -> int:
    """Return how often threads of a process have gone to sleep of their own accord, to be woken again."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/status"):
        total += _field(task.read_text(), "voluntary_ctxt_switches")
    return total


def memory(pid: int) -> Footprint:
    """Return the memory of a process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return Footprint(_field(rollup, "Rss") * 1024, _field(rollup, "Pss_Anon") * 1024)


def _field(text: str, name: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:"))


def machine() -> dict[str, str]:
    """Return what the figures depend on, by what it is."""
    facts = {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": f"{os.cpu_count()} x {_processor()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "presence-server": _package("presence-server"),
    }
    facts |= {name: _package(name) for name in _PACKAGES}
    facts |= {name: _program(name, flag) for name, flag in _PROGRAMS.items()}
    return facts


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _program(name: str, flag: str) -> str:
    path = shutil.which(name)
    if path is None:
        return "not installed"
    said = subprocess.run([path, flag], capture_output=True, text=True, check=False)
    words = (said.stdout or said.stderr).splitlines()[0].split()
    return next((word.lstrip("v") for word in reversed(words) if word.lstrip("v")[:1].isdigit()), "?")


def require_linux() -> None:
    """Leave unless processor time and memory can be read here.

    Raises:
        SystemExit: this is no Linux.
    """
    if sys.platform != "linux":
        raise SystemExit("the benchmark reads /proc, so it needs Linux")
