"""The sysctl file: names that kernels have, and values that agree with the server and its unit."""

import re
import shutil
import subprocess

import pytest

from presence.config.settings import QUICK_START_WS_PORT, Settings, admin_port
from presence.transports.sockets import BACKLOG
from tests.deploy.units import DEPLOY, value

FILE = DEPLOY / "sysctl" / "60-presence.conf"
LINES = dict(re.findall(r"^-?([\w./-]+) = (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_values_are_those_of_the_server_and_its_unit() -> None:
    assert int(LINES["net.core.somaxconn"]) >= BACKLOG
    assert int(LINES["fs.nr_open"]) >= int(value("LimitNOFILE"))
    ours = Settings()
    ports = {ours.port, QUICK_START_WS_PORT, ours.tls_port, admin_port(ours.admin)}
    assert set(map(int, LINES["net.ipv4.ip_local_reserved_ports"].split(","))) == ports


@pytest.mark.needs("sysctl")
def test_each_name_exists_in_the_kernel() -> None:
    known = set()
    for name in LINES:
        run = subprocess.run(
            [shutil.which("sysctl") or "sysctl", "-n", name], capture_output=True, text=True, check=False
        )
        known |= {name} if run.returncode == 0 else set()
    missing = LINES.keys() - known
    assert missing <= {"net.netfilter.nf_conntrack_max"}, "no firewall here, but the rest has to exist"
