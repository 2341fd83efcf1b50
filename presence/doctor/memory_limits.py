"""How much memory is left: of the machine, and of the control group that this process is in."""

from pathlib import Path
from typing import Final

_KIB: Final = 1024
# Version 1 has no word for "no limit", but a number that no machine has.
_NO_LIMIT_BYTES: Final = 1 << 60


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return what programs could have before the machine swaps; None: not known."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("MemAvailable:")), None)


def control_group_room(root: Path = Path("/")) -> int | None:
    """Return the least that the limits of this control group and of those above leave; None: no limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    top = root / "sys/fs/cgroup"
    rooms: list[int] = []
    for line in lines:
        _number, kinds, path = line.split(":", 2)
        if not kinds:
            mount = top if (top / "cgroup.controllers").exists() else top / "unified"
            rooms += _rooms(mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            rooms += _rooms(
                top / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )
    return min(rooms, default=None)


def _rooms(mount: Path, path: str, limit: str, usage: str, spare: str) -> list[int]:
    """Return what is left of each limit on the way up. `spare`: pages of files, given back when asked for."""
    group = mount / path.lstrip("/")
    rooms = []
    for each in [group, *group.parents]:
        bound = _number(each / limit)
        if bound is not None and bound < _NO_LIMIT_BYTES:
            used = (_number(each / usage) or 0) - _stat(each / "memory.stat", spare)
            rooms.append(max(0, bound - used))
        if each == mount:
            break
    return rooms


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
