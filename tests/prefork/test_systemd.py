"""The service manager's protocol, over a real socket."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from presence.prefork.systemd import SILENT, Notifier, Watchdog, from_environment
from tests.support.managers import Manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path) as manager:
        yield manager


def notifier(manager: Manager, **others: str) -> Notifier:
    return from_environment({"NOTIFY_SOCKET": manager.notify_socket, **others})


def test_a_start_that_makes_progress_may_take_longer(manager: Manager) -> None:
    notifier(manager).starting("loading data: 7 %", 30.0)
    assert manager.receive() == {"EXTEND_TIMEOUT_USEC": "30000000", "STATUS": "loading data: 7 %"}


def test_service_states_are_notified(manager: Manager) -> None:
    service, before_us = notifier(manager), time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    service.ready("ready\n127.0.0.1:7400")
    assert manager.receive() == {"READY": "1", "STATUS": "ready 127.0.0.1:7400"}, "one line each"
    service.reloading()
    message = manager.receive()
    assert message["RELOADING"] == "1"
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert before_us <= int(message["MONOTONIC_USEC"]) <= now_us
    service.stopping("draining")
    assert manager.receive() == {"STOPPING": "1", "STATUS": "draining"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux names sockets so")
def test_an_abstract_socket_is_supported() -> None:
    with Manager() as manager:
        notifier(manager).ping()
        assert manager.receive() == {"WATCHDOG": "1"}


def test_variables_are_removed_from_the_environment(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.notify_socket, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    from_environment(environ)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "notify"])
def test_other_addresses_are_left_alone(address: str) -> None:
    assert from_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"}) == SILENT


@pytest.mark.parametrize(
    ("others", "ping_interval_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid() + 1)}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_interval_applies_to_the_named_process(
    manager: Manager, others: dict[str, str], ping_interval_s: float | None
) -> None:
    assert notifier(manager, **others).ping_interval_s == ping_interval_s


def test_a_manager_that_is_gone_or_does_not_read_blocks_nothing(tmp_path: Path, manager: Manager) -> None:
    gone = Notifier(str(tmp_path / "missing"), 1.0)
    gone.ready("x")
    gone.ping()
    SILENT.ready("x")
    tells, began = notifier(manager), time.monotonic()
    for _ in range(2000):  # more than the kernel queues
        tells.ping()
    assert time.monotonic() - began < 10
    assert manager.receive() == {"WATCHDOG": "1"}


def test_watchdog_pings_when_due_and_returns_the_time_to_the_next_ping(manager: Manager) -> None:
    watchdog = Watchdog(notifier(manager, WATCHDOG_USEC="180000000"))
    assert watchdog.notify() == pytest.approx(60.0)
    assert 0 < (watchdog.notify() or 0) < 60.001
    assert manager.receive() == {"WATCHDOG": "1"}
    assert manager.is_silent()
    assert Watchdog(SILENT).notify() is None
