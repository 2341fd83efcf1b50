"""Checks of the kernel's settings, beside what as many connections need. Pure.

What mends a finding is a line for ``/etc/sysctl.d``; deploy/sysctl has them all.
"""

import math
from typing import Final

from presence.doctor.facts import Machine
from presence.doctor.findings import Finding, not_tried, ok, warn
from presence.doctor.needs import Wanted, count, number, wanted_ports
from presence.files import needed
from presence.settings import Settings
from presence.transports.tcp import BACKLOG

_FILE: Final = "in /etc/sysctl.d/60-presence.conf, then: sysctl --system"
# Without cookies the kernel keeps a quarter of the table for those whom it has seen before.
_SYN_SHARE: Final = 0.75
_LINGER: Final = 2  # whoever is gone stands in the firewall's table for two minutes more
_WIDEST: Final = "1024 65535"  # what may be had of the range of local ports
_WIDEST_PORTS: Final = 65535 - 1024 + 1


def kernel(settings: Settings, machine: Machine, connections: Wanted) -> list[Finding]:
    """Return all findings about the kernel's settings."""
    if not machine.system.startswith("linux"):
        names = (
            "listen queue",
            "syn queue",
            "local ports",
            "reserved ports",
            "conntrack",
            "tcp memory",
            "all files",
        )
        return [not_tried(name, "as much as Linux needs", f"this is {machine.system}") for name in names]
    return [
        listen_queue(settings, machine),
        syn_queue(settings, machine),
        local_ports(settings, machine, connections),
        reserved_ports(settings, machine),
        conntrack(machine, connections),
        tcp_memory(machine, connections),
        all_files(settings, machine, connections),
    ]


def listen_queue(settings: Settings, machine: Machine) -> Finding:
    """Whether as many may wait to be accepted as come at once."""
    need = min(BACKLOG, settings.accept_burst)
    return _at_least("listen queue", "net.core.somaxconn", need, machine)


def syn_queue(settings: Settings, machine: Machine) -> Finding:
    """Whether as many may be half open as come at once, or are told a cookie."""
    need = math.ceil(min(BACKLOG, settings.accept_burst) / _SYN_SHARE)
    have = number(machine.sysctls, "net.ipv4.tcp_max_syn_backlog")
    if have is not None and have < need and machine.sysctls.get("net.ipv4.tcp_syncookies") not in {None, "0"}:
        return ok(
            "syn queue",
            f"net.ipv4.tcp_max_syn_backlog {count(need)}, or cookies",
            f"{count(have)}, and cookies for those beyond (net.ipv4.tcp_syncookies)",
        )
    return _at_least("syn queue", "net.ipv4.tcp_max_syn_backlog", need, machine)


def local_ports(settings: Settings, machine: Machine, connections: Wanted) -> Finding:
    """Whether a proxy on this machine has a port for each connection that it opens to the server."""
    check, name = "local ports", "net.ipv4.ip_local_port_range"
    bounds = _numbers(machine.sysctls.get(name, ""))
    if len(bounds) != 2:
        return _missing(check, name)
    have = bounds[1] - bounds[0] + 1
    if settings.proxy_from is None:
        return ok(check, "nothing without proxy_from: clients bring their own", f"{count(have)} ports")
    need = f"{count(connections.total)} ports where the proxy runs, for each address that it comes from"
    if have >= connections.total:
        return ok(check, need, f"{count(have)} ports here")
    line = f"{name} = {_WIDEST} {_FILE}"
    if connections.total > _WIDEST_PORTS:
        line += "; and several source addresses at the proxy, see deploy/haproxy"
    return warn(check, need, f"{count(have)} ports here", line)


def reserved_ports(settings: Settings, machine: Machine) -> Finding:
    """Whether the kernel might give the server's ports to somebody else who asks for any."""
    check, name = "reserved ports", "net.ipv4.ip_local_reserved_ports"
    bounds = _numbers(machine.sysctls.get("net.ipv4.ip_local_port_range", ""))
    if len(bounds) != 2:
        return _missing(check, "net.ipv4.ip_local_port_range")
    reserved = machine.sysctls.get(name, "")
    ports = [each.port for each in wanted_ports(settings) if each.port]
    given = [port for port in ports if bounds[0] <= port <= bounds[1] and not _is_in(port, reserved)]
    need = f"{', '.join(map(str, ports)) or 'no port'} given to nobody who asks for any"
    if not given:
        return ok(check, need, f"any are from {bounds[0]} to {bounds[1]}, without {reserved or 'exception'}")
    kept = ",".join([*([reserved] if reserved else []), *map(str, given)])
    return warn(check, need, f"any are from {bounds[0]} to {bounds[1]}", f"{name} = {kept} {_FILE}")


def conntrack(machine: Machine, connections: Wanted) -> Finding:
    """Whether the firewall's table has room for all connections and those that have just ended."""
    name = "net.netfilter.nf_conntrack_max"
    if name not in machine.sysctls:
        return ok("conntrack", "room for all, where there is a table", "there is none")
    return _at_least("conntrack", name, _LINGER * connections.total, machine)


def tcp_memory(machine: Machine, connections: Wanted) -> Finding:
    """Whether a packet of everybody at once fits before the kernel begins to save; counted in pages."""
    check, name = "tcp memory", "net.ipv4.tcp_mem"
    pages = _numbers(machine.sysctls.get(name, ""))
    if len(pages) != 3:
        return _missing(check, name)
    need = f"{name}: {count(connections.total)} pages before it saves"
    if pages[1] >= connections.total:
        return ok(check, need, f"{count(pages[1])}")
    low = connections.total
    line = f"{name} = {low} {math.ceil(low * 4 / 3)} {2 * low} {_FILE}"
    return warn(check, need, f"{count(pages[1])}", line)


def all_files(settings: Settings, machine: Machine, connections: Wanted) -> Finding:
    """Whether the machine lets all workers have their files."""
    need = settings.workers * needed(connections.per_worker)
    return _at_least("all files", "fs.file-max", need, machine)


def _at_least(check: str, name: str, need: int, machine: Machine) -> Finding:
    have = number(machine.sysctls, name)
    if have is None:
        return _missing(check, name)
    if have >= need:
        return ok(check, f"{name} {count(need)}", count(have))
    return warn(check, f"{name} {count(need)}", count(have), f"{name} = {need} {_FILE}")


def _missing(check: str, name: str) -> Finding:
    return not_tried(check, f"{name} to be read", "this kernel, or this container, does not show it")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split() if word.isdigit()]


def _is_in(port: int, ranges: str) -> bool:
    """Whether a port is in what the kernel writes as ``7400,8000-8010``."""
    for each in filter(None, ranges.split(",")):
        first, _, last = each.strip().partition("-")
        if first.isdigit() and int(first) <= port <= int(last or first):
            return True
    return False
