"""How many connections the file limit allows."""

import errno
import os
import resource
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def opened(path: Path) -> BinaryIO:
    """Open a file to be read.

    Raises:
        OSError: it cannot be opened, or is a directory, a FIFO, a device.
    """
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(fd, "rb")


RESERVE_SHARE = 20  # one in so many descriptors is kept for Redis, logs, listeners and what a library opens
RESERVE_MIN = 64
RESERVE_MAX = 1000


class FileLimitError(Exception):
    """The process may not open as many files as the settings need."""


class Claimed(NamedTuple):
    """Files that the process may open, and connections that it takes."""

    files: int
    max_connections: int


def claim(max_connections: int) -> Claimed:
    """Raise the file limit as far as allowed; return it, and how many connections fit.

    Args:
        max_connections: what was asked for; 0 takes what fits.

    Raises:
        FileLimitError: what was asked for does not fit, or nothing does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, 1_048_576)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fit = fitting(hard)
    if fit < 1:
        raise FileLimitError(f"the open file limit (ulimit -n) is {hard}: too low to serve any connection")
    if max_connections > fit:
        raise FileLimitError(
            f"max_connections: {max_connections} does not fit into the file limit of {hard} (ulimit -n), "
            f"of which {hard - fit} are reserved; at most {fit} fit"
        )
    return Claimed(hard, max_connections or fit)


def fitting(files: int) -> int:
    """Return how many connections fit below a limit of so many files; 0 or less: none."""
    return files - min(RESERVE_MAX, max(RESERVE_MIN, files // RESERVE_SHARE))


def spare(connections: int) -> int:
    """Return how many connections beyond the bound may be open while they are told that they are too many.

    The other half of what is reserved beside so many connections is left to Redis, logs and the rest.
    """
    return (needed(connections) - connections) // 2


def needed(connections: int) -> int:
    """Return the lowest limit of files below which so many connections fit."""
    files = connections + RESERVE_MIN
    while (missing := connections - fitting(files)) > 0:
        files += missing
    return files
