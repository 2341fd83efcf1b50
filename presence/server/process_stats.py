"""What a process takes from its machine: memory, descriptors, processor time.

Each figure costs the same however many connections there are: nothing here lists descriptors but once.
"""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_DESCRIPTORS: Final = Path("/dev/fd" if sys.platform == "darwin" else "/proc/self/fd")
_MEMORY: Final = Path("/proc/self/statm")


class ProcessStats:
    """The footprint of this process.

    A kernel that does not tell how many descriptors are open (Linux before 6.2) is asked for a list, which
    takes milliseconds where there are many: only when this is made, early. From then on connections are
    counted.
    """

    def __init__(self) -> None:
        self._first = _listed()

    def report(self, connections: int) -> dict[str, Any]:
        """Return the figures.

        Args:
            connections: that are open, for kernels that do not count.
        """
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "rss_bytes": _resident_bytes(),
            "open_fds": _counted() or self._first + connections,
            "max_fds": soft if soft != resource.RLIM_INFINITY else None,
            "cpu_user_s": used.ru_utime,
            "cpu_system_s": used.ru_stime,
        }


def _counted() -> int:
    """Return how many descriptors the kernel says that there are; 0: it does not say."""
    with suppress(OSError):
        return _DESCRIPTORS.stat().st_size if sys.platform == "linux" else 0
    return 0


def _listed() -> int:
    with suppress(OSError):
        return len(os.listdir(_DESCRIPTORS)) - 1  # but for that of the list itself
    return 0


def _resident_bytes() -> int:
    """Return the memory in use; where the system only knows the most that it ever was, that."""
    with suppress(OSError, ValueError, IndexError):
        return int(_MEMORY.read_bytes().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
