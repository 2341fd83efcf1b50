"""What is so on this machine, gathered in one place and judged elsewhere. Nothing is changed by looking."""

import ctypes
import importlib.metadata
import importlib.util
import os
import resource
import select
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from presence.doctor.holders import Holder, holders
from presence.doctor.memory_limits import available_bytes, control_group_room
from presence.doctor.needs import wanted_ports
from presence.embedded import EmbeddedError, find_binary
from presence.settings import Settings
from presence.transports import tcp

SYSCTLS: Final = (
    "fs.file-max",
    "fs.nr_open",
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_syncookies",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
)
# Distributions that pip installs with the server; the last three for whoever serves operators.
LIBRARIES: Final = ("trio", "msgpack", "redis", "hiredis", "structlog", "pyjwt", "cryptography")
OPERATORS_LIBRARIES: Final = ("hypercorn", "starlette", "prometheus-client")
_COMPILED: Final = {"msgpack": "msgpack._cmsgpack"}  # works without its compiled part, many times slower
_BIND_LOW_PORTS: Final = 1 << 10  # linux/capability.h, CAP_NET_BIND_SERVICE
_STATUS_OFFSET: Final = 40  # of struct timex, linux/timex.h, where a long has 8 bytes
_TIMEX_BYTES: Final = 256  # more than it has
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC


@dataclass(frozen=True, slots=True)
class FileLimit:
    """How many files a process may open.

    Attributes:
        soft, hard: the limits; a server raises the soft one to the hard one by itself.
        whose: the process, in words.
    """

    soft: int
    hard: int
    whose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is so on this machine.

    Attributes:
        system: as `sys.platform`.
        has_epoll: whether the system has epoll.
        python: major, minor, patch.
        libraries: versions of distributions; None: not installed; "": it is, without its compiled part.
        redis_binary: of a Redis that could be started; "" if there is none.
        files: the file limit of the server that runs, or of this shell.
        sysctls: by name, as text; those that this kernel does not have are missing.
        available_bytes: memory that programs could have; None: not known.
        room_bytes: what is left of the control group's limit; None: there is no limit.
        clock_source: what the kernel reads its clock from; "": not known.
        is_time_set: whether the clock is synchronised; None: not known.
        holders: by port, who listens there.
        may_bind_low: whether this user may listen on ports that are kept for the system.
        unbound: hosts that nobody can listen on here, and why.
        data_dir: what is wrong with the directory of a Redis that is started; "": nothing.
    """

    system: str
    has_epoll: bool
    python: tuple[int, int, int]
    libraries: Mapping[str, str | None]
    redis_binary: str
    files: FileLimit
    sysctls: Mapping[str, str]
    available_bytes: int | None
    room_bytes: int | None
    clock_source: str
    is_time_set: bool | None
    holders: Mapping[int, Sequence[Holder]]
    may_bind_low: bool
    unbound: Mapping[str, str]
    data_dir: str


def gather(settings: Settings, root: Path = Path("/")) -> Machine:
    """Look at the machine.

    Args:
        settings: of the server that is or will be here.
        root: where proc and sys are.
    """
    listening = wanted_ports(settings)
    ports = [each.port for each in listening if each.port]
    held = holders(ports, root)
    server = next(
        (each.pid for port in ports for each in held.get(port, ()) if each.is_ours and each.pid), None
    )
    return Machine(
        system=sys.platform,
        has_epoll=hasattr(select, "epoll"),
        python=sys.version_info[:3],
        libraries={name: _version(name) for name in (*LIBRARIES, *OPERATORS_LIBRARIES)},
        redis_binary=_redis_binary(),
        files=_file_limit(server, root),
        sysctls={name: text for name in SYSCTLS if (text := _sysctl(name, root)) is not None},
        available_bytes=available_bytes(root),
        room_bytes=control_group_room(root),
        clock_source=_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "",
        is_time_set=_is_time_set(),
        holders=held,
        may_bind_low=_may_bind_low(root),
        unbound={each.host: why for each in listening if (why := _cannot_bind(each.host))},
        data_dir=_problem_with(settings.data_dir),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _sysctl(name: str, root: Path) -> str | None:
    return _text(root / "proc/sys" / name.replace(".", "/"))


def _file_limit(server: int | None, root: Path) -> FileLimit:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if server is not None:
        for line in (_text(root / f"proc/{server}/limits") or "").splitlines():
            if line.startswith("Max open files"):
                found = line.removeprefix("Max open files").split()
                if found[0].isdigit() and found[1].isdigit():
                    return FileLimit(int(found[0]), int(found[1]), f"the server, process {server}")
    return FileLimit(soft, hard, "this shell (a service has its own)")


def _version(name: str) -> str | None:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    compiled = _COMPILED.get(name)
    return version if compiled is None or importlib.util.find_spec(compiled) else ""


def _redis_binary() -> str:
    try:
        return find_binary()
    except EmbeddedError:
        return ""


def _may_bind_low(root: Path) -> bool:
    for line in (_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _BIND_LOW_PORTS)
    return False


def _cannot_bind(host: str) -> str:
    """Return why nobody can listen on a host; a port of no concern is taken for a moment."""
    try:
        for sock in tcp.reserve(host, 0):
            sock.close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _problem_with(folder: Path | None) -> str:
    if folder is None:
        return ""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    if not there.is_dir():
        return f"{there} is no directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written by this user"


def _is_time_set() -> bool | None:
    """Ask the kernel whether whoever sets its clock is content with it; None where it cannot be asked."""
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    answer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: nothing is set
    if ctypes.CDLL(None, use_errno=True).adjtimex(answer) < 0:
        return None
    status = int.from_bytes(answer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    return not status & _UNSYNCHRONISED
