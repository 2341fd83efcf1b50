"""Directories for what a process leaves on its machine while it runs: sockets, and where it can be reached.

Only the user of the process can enter its directory. The process holds a lock in it while it lives, so the
next start removes what a killed process has left, whatever process has its id by now.

Tests: `tests/cli/test_local_server.py`, `tests/store/test_embedded.py`.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from presence.common.files import close_after_fork

SERVICE_DIRECTORY: Final = Path("/run/presence")  # RuntimeDirectory= of deploy/systemd/presence.service
_PREFIX: Final = "presence-"
_LOCK: Final = "lock"


class RuntimeDirectory:
    """A new directory of this process, removed by `close`.

    It is below the directory that systemd gives a service, else in that for temporary files.

    Attributes:
        path: the directory.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        _remove_stale()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parents()[0]))
        try:
            self._hold_lock()
        except BaseException:  # without a lock no later start would remove it
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _hold_lock(self) -> None:
        unfinished = self.path / f"{_LOCK}.new"  # so that no process finds a lock not held yet
        self._lock = unfinished.open("w")
        # A worker that drains does not keep the directory of a killed supervisor.
        close_after_fork(self._lock)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unfinished.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the directory and what is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def live_directories() -> list[Path]:
    """Return the directories of this user's live processes; those of other users are ignored."""
    return [each for each in _directories() if _has_owner(each)]


def _parents() -> list[Path]:
    """Return where such directories may be; new ones are made in the first."""
    given = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]  # set by systemd
    places = [Path(tempfile.gettempdir()), SERVICE_DIRECTORY]
    return [Path(given), *places] if given else places


def _directories() -> Iterator[Path]:
    for each in sorted({found for parent in _parents() for found in parent.glob(f"{_PREFIX}*")}):
        with contextlib.suppress(OSError):  # it may be removed meanwhile
            found = each.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and not found.st_mode & 0o077 and (each / _LOCK).is_file():
                yield each


def _has_owner(directory: Path) -> bool:
    """Whether the process that made the directory lives."""
    with contextlib.suppress(OSError), (directory / _LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _remove_stale() -> None:
    """Remove the directories of killed processes, except of one whose child outlived it and still listens."""
    for each in _directories():
        if not _has_owner(each) and not any(map(_accepts, each.glob("*.sock"))):
            shutil.rmtree(each, ignore_errors=True)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        return True
    return False
