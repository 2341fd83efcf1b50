"""What a running deployment may lack, for the length of a test: threads, descriptors, memory, room on a disk.

`tests.support.starved` does the same to a process from its start.
"""

import contextlib
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import psutil

from tests.support.starved import MB

CGROUPS: Final = Path("/sys/fs/cgroup")
DISK_ROOM: Final = "24m"  # more than an append-only file of a test; the rest is filled
FILL_BYTES: Final = 1 << 20
# Idle threads end immediately, so that none is left to be used again; while the file exists, none is started.
SITE: Final = """
import os, threading
import trio._core._thread_cache as cache
cache.IDLE_TIMEOUT = 0.02
_start = threading.Thread.start
def start(self):
    if os.path.exists({flag!r}):
        raise RuntimeError("can't start new thread")
    _start(self)
threading.Thread.start = start
"""


class Scarcity(Protocol):
    """Something that processes can lack."""

    def begin(self, pid: int) -> None:
        """Take it from a process and all that it has started."""

    def end(self, pid: int) -> None:
        """Give it back."""


def tree(pid: int) -> list[int]:
    """Return a process and all that it has started; none, if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid)
        return [pid, *(each.pid for each in found.children(recursive=True))]
    return []


class NoThreads:
    """No start of a thread succeeds; `folder` goes on the path of modules of the processes."""

    def __init__(self, folder: Path) -> None:
        self._flag = folder / "no-threads"
        (folder / "sitecustomize.py").write_text(SITE.format(flag=str(self._flag)))

    def begin(self, _pid: int) -> None:
        self._flag.touch()

    def end(self, _pid: int) -> None:
        self._flag.unlink(missing_ok=True)


class _Limit:
    """A limit of the kernel on each process: the soft one, because not every root may raise a hard one."""

    def __init__(self, number: int, spare: int) -> None:
        self._number, self._spare = number, spare

    def used(self, pid: int) -> int:
        raise NotImplementedError

    def begin(self, pid: int) -> None:
        for each in tree(pid):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                _, most = resource.prlimit(each, self._number)
                resource.prlimit(each, self._number, (self.used(each) + self._spare, most))

    def end(self, pid: int) -> None:
        for each in tree(pid):
            with contextlib.suppress(ProcessLookupError):
                _, most = resource.prlimit(each, self._number)
                resource.prlimit(each, self._number, (most, most))


class NoDescriptors(_Limit):
    """So many further files can be open."""

    def __init__(self, spare: int) -> None:
        super().__init__(resource.RLIMIT_NOFILE, spare)

    def used(self, pid: int) -> int:
        return max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1


class NoMemory(_Limit):
    """So many further MB can be mapped."""

    def __init__(self, spare_mb: int) -> None:
        super().__init__(resource.RLIMIT_AS, spare_mb * MB)

    def used(self, pid: int) -> int:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        return pages * resource.getpagesize()


class NoProcesses:
    """A control group of the test's own has no place for a further thread or process.

    Raises:
        OSError: such groups cannot be made here.
    """

    def __init__(self) -> None:
        version_1 = CGROUPS / "pids"
        self._folder = (version_1 if version_1.is_dir() else CGROUPS) / f"presence-{secrets.token_hex(4)}"
        self._folder.mkdir()
        try:
            (self._folder / "pids.max").read_text()
        except OSError:
            self._folder.rmdir()
            raise

    def enter(self) -> None:
        """Put the calling process into the group, and so all that it starts."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def begin(self, _pid: int) -> None:
        (self._folder / "pids.max").write_text("1")

    def end(self, _pid: int) -> None:
        (self._folder / "pids.max").write_text("max")

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class FullDisk:
    """A disk that only one deployment sees, mounted at `folder`; its log is there if `has_log`.

    `python` and `program` are those of a `PresenceServer` on it.

    Raises:
        OSError: a process may not have mounts of its own here.
    """

    def __init__(self, folder: Path, *, has_log: bool = False, room: str = DISK_ROOM) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        tested = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False, text=True)
        if tested.returncode:
            raise OSError(tested.stderr.strip())
        self.python = "unshare"
        mount = f"mount -t tmpfs -o size={room} tmpfs {folder} && "
        run = 'exec "$@"'
        if has_log:  # what reaches the disk is what the test reads
            run = f': > {self._log}; tail -n +1 -f --pid=$$ {self._log} >&2 & exec "$@" 2>> {self._log}'
        self.program = ("-m", "sh", "-c", mount + run, "sh", sys.executable, "-m", "presence")

    def seen_by(self, pid: int) -> Path:
        """Return the path at which this process sees the disk of another."""
        return Path(f"/proc/{pid}/root{self.folder}")

    def begin(self, pid: int) -> None:
        with contextlib.suppress(OSError), (self.seen_by(pid) / "filling").open("wb", buffering=0) as file:
            for size in (FILL_BYTES, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def end(self, pid: int) -> None:
        (self.seen_by(pid) / "filling").unlink(missing_ok=True)


@contextlib.contextmanager
def lacking(scarcity: Scarcity, pid: int) -> Iterator[None]:
    """Take something from a process and all that it has started, for the length of a ``with`` block."""
    scarcity.begin(pid)
    try:
        yield
    finally:
        scarcity.end(pid)
