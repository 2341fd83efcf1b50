"""Who listens on a port of this machine, as far as the kernel tells this user."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from presence.titles import covered

_LISTENS: Final = "0A"  # linux/tcp_states.h
_OURS: Final = {"presence", "presence.admin", "presence.admin.keeper"}
_COMMAND_CHARS: Final = 80
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens.

    Attributes:
        pid: of the process; None: it is another user's, who is not told of.
        command: how it was started, without secrets.
        memory_bytes: what it has for itself.
    """

    pid: int | None
    command: tuple[str, ...] = ()
    memory_bytes: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether it is a presence server."""
        return any(PurePath(word).name in _OURS for word in self.command)

    def __str__(self) -> str:
        if self.pid is None:
            return "a process of another user"
        words = " ".join(self.command)
        shown = words if len(words) <= _COMMAND_CHARS else f"{words[: _COMMAND_CHARS - 1]}…"
        return f"process {self.pid} ({shown})"


def holders(ports: Sequence[int], root: Path = Path("/")) -> dict[int, list[Holder]]:
    """Return who listens on some ports, on any address; ports on which nobody does are missing."""
    inodes = _listening(frozenset(ports), root)
    if not inodes:
        return {}
    found: dict[int, dict[int | None, Holder]] = {}
    unseen = set(inodes)
    for pid in _processes(root):
        for inode in inodes.keys() & _sockets(pid, root):
            unseen.discard(inode)
            of_port = found.setdefault(inodes[inode], {})
            if pid not in of_port:
                of_port[pid] = _holder(pid, root)
    for inode in unseen:
        found.setdefault(inodes[inode], {}).setdefault(None, Holder(None))
    return {port: list(each.values()) for port, each in found.items()}


def _listening(ports: frozenset[int], root: Path) -> dict[str, int]:
    """Return the sockets that listen on some ports: inode to port."""
    found = {}
    for table in ("tcp", "tcp6"):
        try:
            rows = (root / "proc/net" / table).read_text(encoding="ascii", errors="replace").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == _LISTENS and port in ports:
                found[fields[9]] = port
    return found


def _processes(root: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(root / "proc") if name.isdigit())
    except OSError:
        return []


def _sockets(pid: int, root: Path) -> set[str]:
    """Return the inodes of a process' sockets; of one that is another user's, or gone, none."""
    folder = root / f"proc/{pid}/fd"
    found: set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        try:
            target = os.readlink(folder / name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def _holder(pid: int, root: Path) -> Holder:
    folder = root / f"proc/{pid}"
    try:
        words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
        status = (folder / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return Holder(pid)
    own = next((int(line.split()[1]) * _KIB for line in status if line.startswith("RssAnon:")), 0)
    return Holder(pid, tuple(covered(words)), own)
