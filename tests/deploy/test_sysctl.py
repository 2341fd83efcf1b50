"""The file for sysctl and the doctor agree: with it nothing is too low, without a line something is."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from presence.doctor.facts import SYSCTLS, FileLimit, Machine
from presence.doctor.findings import Status
from presence.doctor.kernel import kernel
from presence.doctor.needs import wanted
from presence.settings import Settings
from tests.deploy.units import DEPLOY, value
from tests.doctor.patients import with_sysctls

FILE = DEPLOY / "sysctl" / "60-presence.conf"
LINES = dict(re.findall(r"^-?([\w./-]+) = (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE))
# What kernels may begin with, and less.
LOW = {
    "net.core.somaxconn": "128",
    "net.ipv4.tcp_max_syn_backlog": "128",
    "net.ipv4.ip_local_port_range": "32768 60999",
    "net.ipv4.ip_local_reserved_ports": "",
    "net.netfilter.nf_conntrack_max": "65536",
    "fs.file-max": "32768",
}
SIX = Settings(workers=6, max_connections=20_000, proxy_from="10.0.0.0/8", tls_cert=Path("cert.pem"))


def wanting(machine: Machine, settings: Settings = SIX) -> dict[str, str]:
    """Return the checks that are not content, and what mends them."""
    found = kernel(settings, machine, wanted(settings, machine.files.hard))
    return {each.check: each.mend for each in found if each.status is not Status.OK}


def test_the_file_names_what_the_doctor_reads() -> None:
    assert LINES.keys() <= set(SYSCTLS)
    assert LOW.keys() <= LINES.keys()


def test_with_the_file_all_is_well_but_the_64_thousand_ports_of_one_address() -> None:
    found = wanting(with_sysctls(**LINES))
    assert list(found) == ["local ports"]
    assert "several source addresses" in found["local ports"]


def test_a_proxy_for_fewer_lacks_nothing() -> None:
    three = Settings(workers=3, max_connections=20_000, proxy_from="10.0.0.0/8")
    assert wanting(with_sysctls(**LINES), three) == {}


@pytest.mark.parametrize("name", LOW)
def test_without_a_line_something_is_wanting_and_it_is_that_line(name: str) -> None:
    cookies = {"net.ipv4.tcp_syncookies": "0"} if "syn" in name else {}
    three = Settings(workers=3, max_connections=20_000, proxy_from="10.0.0.0/8", tls_cert=Path("cert.pem"))
    found = wanting(with_sysctls(**LINES | cookies | {name: LOW[name]}), three)
    (mend,) = found.values()
    assert mend.startswith(f"{name} = ")
    assert mend.endswith(f"in /etc/sysctl.d/{FILE.name}, then: sysctl --system")


def test_what_the_unit_lets_one_worker_hold_fits_too() -> None:
    limit = int(value("LimitNOFILE"))
    assert limit <= int(LINES["fs.nr_open"])
    machine = replace(with_sysctls(**LINES), files=FileLimit(limit, limit, "the service"))
    assert wanting(machine, Settings()) == {}


@pytest.mark.needs("sysctl")
def test_each_name_is_one_that_kernels_have() -> None:
    known = set()
    for name in LINES:
        run = subprocess.run(
            [shutil.which("sysctl") or "sysctl", "-n", name], capture_output=True, text=True, check=False
        )
        known |= {name} if run.returncode == 0 else set()
    missing = LINES.keys() - known
    assert missing <= {"net.netfilter.nf_conntrack_max"}, "no firewall here, but the rest has to be there"
