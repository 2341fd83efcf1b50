"""Platform, clocks, files, memory and ports compared with what a server needs."""

import errno
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from presence.config.settings import Settings
from presence.doctor import machine_checks
from presence.doctor.machine_checks import MachineFacts, Port, needed_memory, wanted
from presence.doctor.results import CheckResult, CheckStatus
from tests.doctor.contexts import GB, MACHINE

WITH_REDIS = Settings(redis="redis://r")
STARTS_REDIS = partial(machine_checks.embedded_redis, Settings())
MIB = 1024 * 1024
OK, WARN, FAIL, NOT_TRIED = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.NOT_TRIED


@pytest.mark.parametrize(
    ("check", "changed", "status", "fix"),
    [
        (machine_checks.platform, {}, OK, ""),
        (machine_checks.platform, {"has_epoll": False, "system": "darwin"}, WARN, "run it on Linux"),
        (machine_checks.time, {}, OK, ""),
        (machine_checks.time, {"is_time_set": False}, WARN, "timedatectl set-ntp true"),
        (machine_checks.time, {"is_time_set": None}, NOT_TRIED, ""),
        (partial(machine_checks.embedded_redis, WITH_REDIS), {"redis_binary": ""}, OK, ""),
        (STARTS_REDIS, {"redis_binary": ""}, FAIL, "presence-server[embedded]"),
        (STARTS_REDIS, {"data_dir": "/d may not be written"}, FAIL, "--data-dir"),
        (STARTS_REDIS, {}, OK, ""),
    ],
)
def test_a_problem_is_reported_with_its_fix(
    check: Callable[[MachineFacts], CheckResult], changed: dict[str, Any], status: CheckStatus, fix: str
) -> None:
    result = check(replace(MACHINE, **changed))
    assert result.status is status
    assert fix in result.fix


@pytest.mark.parametrize(
    ("max_connections", "hard", "status", "fix"),
    [
        (0, 20_000, OK, ""),
        (0, 4096, WARN, "LimitNOFILE=10526 in the service's unit, or ulimit -n 10526 in this shell"),
        (0, 64, FAIL, "LimitNOFILE=10526"),
        (19_000, 20_000, OK, ""),
        (19_001, 20_000, FAIL, "LimitNOFILE=20001 "),
        (960, 1024, OK, ""),
        (961, 1024, FAIL, "LimitNOFILE=1025 "),
    ],
)
def test_the_file_limit_is_compared_with_the_wanted_connections(
    max_connections: int, hard: int, status: CheckStatus, fix: str
) -> None:
    settings = Settings(max_connections=max_connections)
    result = machine_checks.open_files(settings, replace(MACHINE, hard_files=hard), wanted(settings, hard))
    assert result.status is status
    assert result.fix.startswith(fix)


def test_needed_memory_is_the_sum_over_all_workers() -> None:
    one = needed_memory(settings := Settings(max_connections=10_000, no_admin=True), wanted(settings, 0))
    assert one.sessions == 60_000_000 + 10_000 * 4696
    assert one.watches == Settings().watch_memory * 1_000_000
    assert one.outbox == 512 * 100_000
    six = needed_memory(settings := Settings(max_connections=10_000, workers=6), wanted(settings, 0))
    assert six.sessions == 60_000_000 + 6 * 15_000_000 + 55_000_000 + 60_000 * 4696
    assert six.watches == 6 * one.watches
    assert six.outbox == 6 * 512 * 100_000
    tls = needed_memory(
        settings := Settings(max_connections=10_000, tls_cert=Path("c"), no_admin=True), wanted(settings, 0)
    )
    assert tls.sessions == 60_000_000 + 10_000 * 20_396


@pytest.mark.parametrize(
    ("there", "max_connections", "status", "fix"),
    [
        (8 * GB, 100_000, OK, ""),
        (575_000_000, 100_000, FAIL, "max_connections = "),
        (680_000_000, 100_000, WARN, "max_connections = "),
        (800_000_000, 100_000, WARN, "watch_memory = "),
        (100_000_000, 100_000, FAIL, "more memory"),
        (600_000_000, 0, WARN, "max_connections = "),
    ],
)
def test_needed_memory_is_compared_with_the_available(
    there: int, max_connections: int, status: CheckStatus, fix: str
) -> None:
    settings = Settings(max_connections=max_connections)
    here = replace(MACHINE, memory_bytes=there)
    result = machine_checks.memory(settings, here, wanted(settings, 105_264))
    assert result.status is status
    assert result.fix.startswith(fix)
    if fix.endswith("= "):  # the suggested value is enough
        number = int(result.fix.removeprefix(fix).partition(",")[0])
        changed: dict[str, Any] = {fix.removesuffix(" = "): number}
        fixed = replace(settings, **changed)
        assert machine_checks.memory(fixed, here, wanted(fixed, 0)).status is OK


@pytest.mark.parametrize(
    ("line", "top", "limit"),
    [
        ("0::/system.slice/presence.service", "", "memory.max"),
        ("4:memory:/system.slice/presence.service", "memory", "memory.limit_in_bytes"),
        ("7:cpu,memory:/system.slice/presence.service", "cpu,memory", "memory.limit_in_bytes"),
    ],
)
def test_the_tightest_control_group_counts(tmp_path: Path, line: str, top: str, limit: str) -> None:
    group = tmp_path / "sys/fs/cgroup" / top / "system.slice/presence.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"9:pids:/elsewhere\n{line}\n")
    (group / limit).write_text("9223372036854771712\n" if top else "max\n")  # how each version says: no limit
    (group.parent / limit).write_text(f"{50 * MIB}\n")
    assert machine_checks.gather(Settings(port=0, no_admin=True), tmp_path).memory_bytes == 50 * MIB
    assert (
        machine_checks.gather(Settings(port=0, no_admin=True), tmp_path / "nowhere").memory_bytes > 50 * MIB
    )


def test_the_limit_of_a_container_is_at_the_top_of_its_view(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup/memory"
    top.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/of/the/host\n")
    (top / "memory.limit_in_bytes").write_text(f"{50 * MIB}\n")
    assert machine_checks.gather(Settings(port=0, no_admin=True), tmp_path).memory_bytes == 50 * MIB


@pytest.mark.parametrize(
    ("code", "status", "fix"),
    [
        (errno.EADDRINUSE, WARN, "ss -ltnp 'sport = :7400'"),
        (errno.EACCES, FAIL, "AmbientCapabilities=CAP_NET_BIND_SERVICE"),
        (errno.EADDRNOTAVAIL, FAIL, "use an address of this machine"),
    ],
)
def test_a_port_that_cannot_be_bound_is_reported_with_its_fix(
    code: int, status: CheckStatus, fix: str
) -> None:
    port = Port("port", "127.0.0.1", 7400)
    here = replace(MACHINE, unbound={port: OSError(code, os.strerror(code))})
    first, admin = machine_checks.ports(Settings(), here)
    assert (first.status, admin.have) == (status, "free")
    assert fix in first.fix


def test_ports_and_addresses_are_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (held,) = machine_checks.gather(Settings(port=port, no_admin=True)).unbound.items()
    assert (held[0].port, held[1].errno) == (port, errno.EADDRINUSE)
    assert machine_checks.gather(Settings(port=port, no_admin=True)).unbound == {}
    assert len(machine_checks.gather(Settings(port=0, host="192.0.2.1", no_admin=True)).unbound) == 1
    secured = Settings(port=1, tls_cert=Path("c"), tls_port=2)
    assert [each[::2] for each in machine_checks.wanted_ports(secured)] == [
        ("port", 1),
        ("tls_port", 2),
        ("admin", 7480),
    ]
    only = Settings(port=1, tls_cert=Path("c"), tls_port=2, tls_only=True, no_admin=True)
    assert [each[::2] for each in machine_checks.wanted_ports(only)] == [("port", 1)]


def test_a_directory_that_can_be_created_passes(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = {"a/b": "", "file": f"{tmp_path / 'file'} is not a directory"}
    for name, problem in folders.items():
        settings = Settings(port=0, no_admin=True, data_dir=tmp_path / name)
        assert machine_checks.gather(settings, tmp_path).data_dir == problem


def test_no_limit_of_open_files_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: unlimited)
    settings = Settings(port=0, no_admin=True)
    found = machine_checks.gather(settings)
    result = machine_checks.open_files(settings, found, machine_checks.wanted(settings, found.hard_files))
    assert result.status is CheckStatus.OK
