"""Platform, libraries, clocks, files, memory and ports beside what a server needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from presence.doctor import machine
from presence.doctor.facts import FileLimit
from presence.doctor.findings import Finding, Status
from presence.doctor.holders import Holder
from presence.doctor.needs import memory, wanted
from presence.settings import Settings
from tests.doctor.patients import GB, MACHINE, with_sysctls

WITH_REDIS = Settings(redis="redis://r")
SERVE = ("/opt/presence/bin/python", "/opt/presence/bin/presence", "serve")


def software(check: str, settings: Settings = WITH_REDIS, **changed: Any) -> Finding:
    findings = machine.software(settings, replace(MACHINE, **changed))
    (finding,) = [each for each in findings if each.check == check]
    return finding


def test_a_sound_machine_is_found_so() -> None:
    assert {each.status for each in machine.software(Settings(), MACHINE)} == {Status.OK}


@pytest.mark.parametrize(
    ("check", "changed", "status", "mend"),
    [
        ("platform", {"has_epoll": False, "system": "darwin"}, Status.WARN, "run it on Linux"),
        ("python", {"python": (3, 10, 9)}, Status.FAIL, "install a newer one"),
        ("python", {"python": (3, 14, 0)}, Status.WARN, "Python 3.13"),
        ("clock source", {"clock_source": "hpet"}, Status.WARN, "clocksource=tsc"),
        ("clock source", {"clock_source": ""}, Status.NOT_TRIED, ""),
        ("time", {"is_time_set": False}, Status.WARN, "timedatectl set-ntp true"),
        ("time", {"is_time_set": None}, Status.NOT_TRIED, ""),
    ],
)
def test_what_is_wanting_is_told_with_what_mends_it(
    check: str, changed: dict[str, Any], status: Status, mend: str
) -> None:
    finding = software(check, **changed)
    assert finding.status is status
    assert mend in finding.mend


def test_a_library_that_is_missing_is_named() -> None:
    finding = software("libraries", libraries={**MACHINE.libraries, "trio": None})
    assert (finding.status, finding.mend) == (Status.FAIL, "pip install trio")


def test_one_without_its_compiled_part_works() -> None:
    finding = software("libraries", libraries={**MACHINE.libraries, "msgpack": ""})
    assert finding.status is Status.WARN
    assert finding.mend.endswith(" msgpack")


@pytest.mark.parametrize(("no_admin", "status"), [(False, Status.FAIL), (True, Status.OK)])
def test_what_serves_operators_is_needed_by_whoever_does(no_admin: bool, status: Status) -> None:
    settings = Settings(redis="redis://r", no_admin=no_admin)
    assert (
        software("libraries", settings, libraries={**MACHINE.libraries, "hypercorn": None}).status is status
    )


@pytest.mark.parametrize(
    ("settings", "changed", "status", "mend"),
    [
        (WITH_REDIS, {"redis_binary": ""}, Status.OK, ""),
        (Settings(), {"redis_binary": ""}, Status.FAIL, "presence-server[embedded]"),
        (Settings(data_dir=Path("/d")), {"data_dir": "/d may not be written"}, Status.FAIL, "--data-dir"),
        (Settings(data_dir=Path("/d")), {}, Status.OK, ""),
    ],
)
def test_a_redis_is_started_where_none_is_given(
    settings: Settings, changed: dict[str, Any], status: Status, mend: str
) -> None:
    finding = software("embedded redis", settings, **changed)
    assert finding.status is status
    assert mend in finding.mend


@pytest.mark.parametrize(
    ("max_connections", "hard", "status", "mend"),
    [
        (0, 20_000, Status.OK, ""),
        (0, 4096, Status.WARN, "LimitNOFILE=10526 in the service's unit, or ulimit -n 10526 in this shell"),
        (0, 64, Status.FAIL, "LimitNOFILE=10526"),
        (19_000, 20_000, Status.OK, ""),
        (19_001, 20_000, Status.FAIL, "LimitNOFILE=20001 "),
        (960, 1024, Status.OK, ""),
        (961, 1024, Status.FAIL, "LimitNOFILE=1025 "),
        (
            2_000_000,
            1_000_000,
            Status.FAIL,
            "fs.nr_open = 2001000 in /etc/sysctl.d/60-presence.conf, and LimitNOFILE",
        ),
    ],
)
def test_the_file_limit_is_held_against_the_connections_that_are_wanted(
    max_connections: int, hard: int, status: Status, mend: str
) -> None:
    settings = Settings(max_connections=max_connections)
    finding = machine.open_files(
        settings, replace(MACHINE, files=FileLimit(512, hard, "this shell")), wanted(settings, hard)
    )
    assert finding.status is status
    assert finding.mend.startswith(mend)


def test_memory_is_reckoned_for_all_workers() -> None:
    one = memory(settings := Settings(max_connections=10_000, no_admin=True), wanted(settings, 0))
    assert one.sessions == 60_000_000 + 10_000 * 4696
    assert one.outbox == 512 * 100_000
    six = memory(settings := Settings(max_connections=10_000, workers=6), wanted(settings, 0))
    assert six.sessions == 60_000_000 + 6 * 15_000_000 + 80_000_000 + 60_000 * 4696
    assert six.outbox == 6 * 512 * 100_000


def test_a_connection_with_tls_takes_more() -> None:
    settings = Settings(max_connections=10_000, tls_cert=Path("c"), no_admin=True)
    assert memory(settings, wanted(settings, 0)).sessions == 60_000_000 + 10_000 * 20_396


@pytest.mark.parametrize(
    ("available", "room", "max_connections", "status", "mend"),
    [
        (8 * GB, None, 100_000, Status.OK, ""),
        (None, None, 100_000, Status.NOT_TRIED, ""),
        (600_000_000, None, 100_000, Status.FAIL, "max_connections = "),
        (680_000_000, None, 100_000, Status.WARN, "max_connections = "),
        (8 * GB, 600_000_000, 100_000, Status.FAIL, "max_connections = "),
        (100_000_000, None, 100_000, Status.FAIL, "more memory"),
        (600_000_000, None, 0, Status.WARN, "max_connections = "),
    ],
)
def test_memory_is_held_against_what_is_free(
    available: int | None, room: int | None, max_connections: int, status: Status, mend: str
) -> None:
    settings = Settings(max_connections=max_connections)
    here = replace(MACHINE, available_bytes=available, room_bytes=room)
    finding = machine.room(settings, here, wanted(settings, 105_264))
    assert finding.status is status
    assert finding.mend.startswith(mend)


def test_what_the_mend_of_memory_names_is_enough() -> None:
    here = replace(MACHINE, available_bytes=600_000_000)
    mend = machine.room(settings := Settings(max_connections=100_000), here, wanted(settings, 0)).mend
    settings = Settings(max_connections=int(mend.removeprefix("max_connections = ").partition(",")[0]))
    assert machine.room(settings, here, wanted(settings, 0)).status is Status.OK


def test_what_the_server_has_already_counts_as_free() -> None:
    settings = Settings(max_connections=50_000)
    here = replace(MACHINE, available_bytes=100_000_000)
    live = replace(
        here, holders={7400: [Holder(7, SERVE, 400_000_000)], 7480: [Holder(7, SERVE, 400_000_000)]}
    )
    assert machine.room(settings, here, wanted(settings, 0)).status is Status.FAIL
    assert machine.room(settings, live, wanted(settings, 0)).status is Status.OK


@pytest.mark.parametrize(
    ("settings", "holder", "asked", "status", "mend"),
    [
        (Settings(), Holder(7, SERVE), set(), Status.OK, ""),
        (Settings(), Holder(7, ("python", "-m", "presence", "serve")), set(), Status.OK, ""),
        (Settings(), Holder(7, ("nginx",)), set(), Status.FAIL, "stop it, or choose another with --port"),
        (Settings(), Holder(None), set(), Status.WARN, "ss -ltnp"),
        (
            Settings(tls_cert=Path("c"), tls_port=7400, port=1),
            Holder(7, ("nginx",)),
            set(),
            Status.FAIL,
            "--tls-port",
        ),
    ],
)
def test_a_port_that_is_held_is_told_with_its_holder(
    settings: Settings, holder: Holder, asked: set[str], status: Status, mend: str
) -> None:
    here = replace(with_sysctls(net__ipv4__ip_unprivileged_port_start="0"), holders={7400: [holder]})
    (finding,) = [each for each in machine.ports(settings, here, asked) if " 7400 on" in each.need]
    assert finding.status is status
    assert mend in finding.mend
    assert str(holder) in finding.have


@pytest.mark.parametrize(("asked", "status"), [(set(), Status.WARN), ({"admin"}, Status.FAIL)])
def test_operators_get_another_port_unless_theirs_was_asked_for(asked: set[str], status: Status) -> None:
    here = replace(MACHINE, holders={7480: [Holder(7, ("nginx",))]})
    finding = machine.ports(Settings(), here, asked)[-1]
    assert finding.status is status
    assert "--admin" in finding.mend


def test_free_and_picked_ports_are_sound() -> None:
    findings = machine.ports(Settings(port=0), MACHINE, set())
    assert [(each.status, each.have) for each in findings] == [
        (Status.OK, "one is picked"),
        (Status.OK, "free"),
    ]


def test_an_address_of_another_machine_is_told() -> None:
    here = replace(MACHINE, unbound={"192.0.2.1": "Cannot assign requested address"})
    finding = machine.ports(Settings(host="192.0.2.1", no_admin=True), here, set())[0]
    assert finding.status is Status.FAIL
    assert "Cannot assign" in finding.have


@pytest.mark.parametrize(("may", "status"), [(False, Status.FAIL), (True, Status.OK)])
def test_low_ports_take_a_right(may: bool, status: Status) -> None:
    here = replace(MACHINE, may_bind_low=may)
    finding = machine.ports(Settings(port=443, no_admin=True), here, set())[0]
    assert finding.status is status
    assert finding.mend.startswith("AmbientCapabilities=CAP_NET_BIND_SERVICE" if not may else "")
