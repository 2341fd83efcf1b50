"""A real `presence serve` below a service manager: the notifications, and who sends none."""

import os
import signal
from pathlib import Path

import pytest

from tests.server.test_serve import failed_start
from tests.support.managers import Manager
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC")


def environment(pid: int) -> set[str]:
    """Return the names of a process's environment variables."""
    return {entry.partition("=")[0] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0")}


def children(pid: int) -> set[int]:
    """Return all processes below one."""
    found = {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return found.union(*(children(each) for each in found))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_alone_tells_when_it_is_ready_reloads_lives_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    with Manager(tmp_path) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.notify_socket)
        monkeypatch.setenv("WATCHDOG_USEC", "600000")
        # Without a Redis that is given it starts one, too.
        server = PreloadedServer("--no-admin", "--workers", str(workers))
        try:
            ready = manager.wait_for("READY")
            assert ready["STATUS"] == f"ready {server.address[0]}:{server.address[1]}"
            os.kill(server.process.pid, signal.SIGHUP)
            assert int(manager.wait_for("RELOADING")["MONOTONIC_USEC"]) > 0
            assert manager.wait_for("READY") == ready
            wait_for(lambda: len(server.logged("files reloaded")) == workers)
            for _ in range(3):
                assert manager.wait_for("WATCHDOG") == {"WATCHDOG": "1"}
            # What is forked has the first environment of its parent in its memory, and no variable any more.
            started = children(server.process.pid) - set(server.workers().values())
            assert started
            assert not any(environment(pid).intersection(VARIABLES) for pid in started)
        finally:
            assert server.stop() == 0
        assert manager.wait_for("STOPPING")["STATUS"] == "draining"
        assert sum("READY" in message for message in manager.messages) == 2


def test_a_server_that_cannot_start_was_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Manager(tmp_path) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.notify_socket)
        status, _, _ = failed_start("--no-admin", "--redis", "unix:///nowhere/redis.sock")
        assert status == 1
        assert manager.is_silent()
