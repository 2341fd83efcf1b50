"""The kernel's settings beside what connections need."""

from dataclasses import replace

import pytest

from presence.doctor import kernel
from presence.doctor.facts import Machine
from presence.doctor.findings import Finding, Status
from presence.doctor.needs import Wanted
from presence.settings import Settings
from tests.doctor.patients import MACHINE, with_sysctls

MANY = Wanted(20_000, 120_000, is_asked=True)
SIX = Settings(workers=6, max_connections=20_000)


def found(check: str, machine: Machine, settings: Settings = SIX, connections: Wanted = MANY) -> Finding:
    (finding,) = [each for each in kernel.kernel(settings, machine, connections) if each.check == check]
    return finding


def test_a_sound_machine_is_found_so() -> None:
    assert {each.status for each in kernel.kernel(SIX, MACHINE, MANY)} == {Status.OK}


@pytest.mark.parametrize(
    ("check", "name", "value", "line"),
    [
        ("listen queue", "net.core.somaxconn", "128", "net.core.somaxconn = 4096"),
        ("conntrack", "net.netfilter.nf_conntrack_max", "65536", "net.netfilter.nf_conntrack_max = 240000"),
        ("tcp memory", "net.ipv4.tcp_mem", "1 119999 3", "net.ipv4.tcp_mem = 120000 160000 240000"),
        ("all files", "fs.file-max", "100000", "fs.file-max = 126000"),
        (
            "reserved ports",
            "net.ipv4.ip_local_port_range",
            "1024 65535",
            "net.ipv4.ip_local_reserved_ports = 7400,7480",
        ),
    ],
)
def test_what_is_too_low_is_mended_by_a_line(check: str, name: str, value: str, line: str) -> None:
    finding = found(check, with_sysctls(**{name: value}))
    assert finding.status is Status.WARN
    assert finding.mend == f"{line} in /etc/sysctl.d/60-presence.conf, then: sysctl --system"


@pytest.mark.parametrize("name", ["net.core.somaxconn", "net.ipv4.tcp_mem", "net.ipv4.ip_local_port_range"])
def test_what_the_kernel_does_not_show_is_not_tried(name: str) -> None:
    hidden = with_sysctls(**{name: None})
    statuses = {each.status for each in kernel.kernel(SIX, hidden, MANY)}
    assert statuses == {Status.OK, Status.NOT_TRIED}


def test_no_more_has_to_queue_than_may_come_at_once() -> None:
    assert found(
        "listen queue", with_sysctls(net__core__somaxconn="128"), Settings(accept_burst=100)
    ).need.endswith("somaxconn 100")


def test_without_a_firewalls_table_there_is_no_bound() -> None:
    assert found("conntrack", MACHINE).status is Status.OK


@pytest.mark.parametrize(("cookies", "status"), [("1", Status.OK), ("2", Status.OK), ("0", Status.WARN)])
def test_cookies_make_up_for_a_short_queue_of_half_open_connections(cookies: str, status: Status) -> None:
    short = with_sysctls(net__ipv4__tcp_max_syn_backlog="2048", net__ipv4__tcp_syncookies=cookies)
    finding = found("syn queue", short)
    assert finding.status is status
    assert finding.mend.startswith("net.ipv4.tcp_max_syn_backlog = 5462" if status is Status.WARN else "")


@pytest.mark.parametrize(
    ("proxy_from", "total", "status", "mend"),
    [
        (None, 120_000, Status.OK, ""),
        ("10.0.0.0/8", 20_000, Status.OK, ""),
        ("10.0.0.0/8", 40_000, Status.WARN, "1024 65535"),
        ("10.0.0.0/8", 120_000, Status.WARN, "several source addresses"),
    ],
)
def test_a_proxy_needs_a_port_for_each_connection(
    proxy_from: str | None, total: int, status: Status, mend: str
) -> None:
    finding = found(
        "local ports", MACHINE, Settings(proxy_from=proxy_from), Wanted(total, total, is_asked=True)
    )
    assert finding.status is status
    assert mend in finding.mend


@pytest.mark.parametrize("reserved", ["7400,7480", "7000-8000", "7400,7443,7480-7490"])
def test_ports_that_are_reserved_are_given_to_nobody(reserved: str) -> None:
    wide = with_sysctls(
        net__ipv4__ip_local_port_range="1024 65535", net__ipv4__ip_local_reserved_ports=reserved
    )
    assert found("reserved ports", wide).status is Status.OK


def test_what_is_reserved_already_stays_so() -> None:
    wide = with_sysctls(
        net__ipv4__ip_local_port_range="1024 65535", net__ipv4__ip_local_reserved_ports="99,7480"
    )
    assert "= 99,7480,7400 in" in found("reserved ports", wide).mend


def test_elsewhere_nothing_is_tried() -> None:
    mac = replace(MACHINE, system="darwin", sysctls={})
    assert {each.status for each in kernel.kernel(SIX, mac, MANY)} == {Status.NOT_TRIED}
