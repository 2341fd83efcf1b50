"""The file limit and the connections that it allows; regular files without blocking; files of one process."""

import errno
import os
import resource
import stat
import weakref
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def open_regular_file(path: Path) -> BinaryIO:
    """Open a file for reading. Unlike `open`, never block on a FIFO or a terminal.

    Raises:
        OSError: it cannot be opened, or is a directory, a FIFO or a device.
    """
    fd = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return os.fdopen(fd, "rb")


class SecretFileError(Exception):
    """A file with secrets cannot be used; the message names the file and shows nothing of it."""


def read_secret_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file that other users of this machine can neither read nor write.

    Raises:
        SecretFileError: it cannot be read without blocking, is too large, or its permissions are too open.
    """
    try:
        with open_regular_file(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: cannot be read: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SecretFileError(f"{path}: holds secrets, and is accessible to all users: chmod o-rwx")
    if len(raw) > max_bytes:
        raise SecretFileError(f"{path}: is larger than {max_bytes:,} bytes")
    return raw


RESERVE_SHARE = 20  # one descriptor in 20 is reserved for Redis, logs, listeners and libraries
RESERVE_MIN = 64
RESERVE_MAX = 1000
# The kernel's default of fs.nr_open. Some container engines set a limit of 2^30: for so many connections the
# outbox would be bounded at a terabyte.
MAX_DERIVING_FILES = 1_048_576


class FileLimitError(Exception):
    """The file limit of the process is too low for the settings."""


class FileLimits(NamedTuple):
    """The file limit of the process, and the connections that it accepts."""

    files: int
    max_connections: int


def file_limits() -> tuple[int, int]:
    """Return the soft and the hard limit of open files; no limit counts as `MAX_DERIVING_FILES`."""
    unlimited = resource.RLIM_INFINITY
    soft, hard = (
        MAX_DERIVING_FILES if limit == unlimited else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, max(soft, hard)


def raise_file_limit(max_connections: int) -> FileLimits:
    """Raise the file limit as far as allowed; return it, and the number of connections; 0: as many as fit.

    Raises:
        FileLimitError: the requested number does not fit, or not even one connection does.
    """
    soft, hard = file_limits()
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fit = connections_within(hard)
    if fit < 1:
        raise FileLimitError(f"the open file limit (ulimit -n) is {hard}: too low to serve any connection")
    if max_connections > fit:
        raise FileLimitError(
            f"max_connections: {max_connections} does not fit into the file limit of {hard} (ulimit -n), "
            f"of which {hard - fit} are reserved; at most {fit} fit"
        )
    return FileLimits(hard, max_connections or default_connections(hard))


def connections_within(files: int) -> int:
    """Return how many connections fit within a file limit; 0 or less: none."""
    return files - min(RESERVE_MAX, max(RESERVE_MIN, files // RESERVE_SHARE))


def default_connections(files: int) -> int:
    """Return how many connections a process with that file limit accepts unless a number was set."""
    return max(0, connections_within(min(files, MAX_DERIVING_FILES)))


def spare_connections(connections: int) -> int:
    """Return how many more connections may be open while they are being refused: half of the reserve.

    The other half is left to Redis, logs and the rest.
    """
    return (files_needed_for(connections) - connections) // 2


def files_needed_for(connections: int) -> int:
    """Return the lowest file limit within which so many connections fit."""
    files = connections + RESERVE_MIN
    while (missing := connections - connections_within(files)) > 0:
        files += missing
    return files


class Closable(Protocol):
    """A file or a socket."""

    def close(self) -> None:
        """Close this process's descriptor."""


_of_one_process: "weakref.WeakSet[Closable]" = weakref.WeakSet()


def close_after_fork(file: Closable) -> None:
    """Close a lock or a socket in every process that is forked from this one, where it would outlive us."""
    _of_one_process.add(file)


def _close_all() -> None:
    for each in list(_of_one_process):
        each.close()
    _of_one_process.clear()


os.register_at_fork(after_in_child=_close_all)
