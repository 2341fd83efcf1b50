"""Resource usage of this process: memory, descriptors, processor time.

The cost of a report does not depend on the number of connections: descriptors are listed at most once.

Tests: `tests/common/test_files.py`, `tests/server/test_server.py`.
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
    """Memory, descriptors and processor time of this process.

    Kernels that do not count open descriptors (Linux before 6.2) have to list them, which takes milliseconds
    if there are many. They are therefore listed once, early, and connections are added from then on.
    """

    def __init__(self) -> None:
        self._first = _listed()

    def report(self, connections: int) -> dict[str, Any]:
        """Return the current usage; the open connections are for kernels that do not count descriptors."""
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
    """Return the number of open descriptors; 0 if the kernel does not count them."""
    with suppress(OSError):
        return _DESCRIPTORS.stat().st_size if sys.platform == "linux" else 0
    return 0


def _listed() -> int:
    with suppress(OSError):
        return len(os.listdir(_DESCRIPTORS)) - 1  # without the descriptor of the listing itself
    return 0


def _resident_bytes() -> int:
    """Return the memory in use, or the peak if the system knows only that."""
    with suppress(OSError, ValueError, IndexError):
        return int(_MEMORY.read_bytes().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
