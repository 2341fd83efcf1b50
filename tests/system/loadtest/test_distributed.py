"""Distributed load tests of which a part is gone: they have failed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadtest.processes import LOCUSTFILE
from loadtest.servers import PresenceServer, free_port
from presence.store.embedded import EmbeddedRedis
from tests.support.events import read_events
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.system.loadtest.test_locust import DEVICES, SERVER

ROOT = LOCUSTFILE.parent.parent


class DistributedRun:
    """A headless run of two workers, whose processes a test may harm; wait for a login before that."""

    def __init__(self, server: PresenceServer, redis_url: str, folder: Path, *flags: str) -> None:
        port, self._path = str(free_port()), folder / "report.json"
        ports = ("--processes", "2", "--master-bind-port", port, "--master-port", port)
        target = ("--host", server.host, "--redis-url", redis_url, "--json-report", str(self._path))
        command = [sys.executable, "-m", "presence.loadtest", "--headless", "--only-summary"]
        load = ("--users", "20", "--spawn-rate", "20", "--scenario", "steady", *DEVICES)
        self.master = subprocess.Popen([*command, *load, *ports, *target, *flags], cwd=ROOT)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.master.pid).children()

    def verdict(self) -> tuple[int, str, list[str]]:
        """Wait for the end; return exit status, verdict and reasons."""
        status = self.master.wait(60)
        report = json.loads(self._path.read_text())
        return status, report["verdict"], report["reasons"]


@contextlib.contextmanager
def distributed(redis_url: str, folder: Path, *flags: str) -> Iterator[DistributedRun]:
    with running_server("--redis", redis_url, *SERVER) as server:
        run = DistributedRun(server, redis_url, folder, *flags)
        wait_for(lambda: len({event["uid"] for event in read_events(redis_url)}) == 20, 20)
        workers = run.workers()
        try:
            yield run
        finally:
            run.master.kill()
            run.master.wait()
            for worker in workers:  # they would notice after a minute
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("harm", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_run_fails_whose_worker_cannot_judge_to_the_end(
    redis_server: EmbeddedRedis, tmp_path: Path, harm: signal.Signals
) -> None:
    with distributed(redis_server.url, tmp_path, "--run-time", "8s") as run:
        time.sleep(4)  # until the workers have reported once
        harmed = run.workers()[0]
        harmed.send_signal(harm)
        status, verdict, reasons = run.verdict()
    assert (status, verdict) == (1, "failed")
    (reason,) = (reason for reason in reasons if "final report" in reason)
    assert f"(pid {harmed.pid}) sent no final report" in reason
    assert "its judge of 10 devices is gone" in reason


@pytest.mark.nightly
def test_an_interrupted_run_is_judged_up_to_then(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    with distributed(redis_server.url, tmp_path) as run:
        time.sleep(2)
        for pid in (run.master.pid, *(worker.pid for worker in run.workers())):  # as a terminal does
            os.kill(pid, signal.SIGINT)
        assert run.verdict() == (0, "passed", [])


@pytest.mark.nightly
def test_a_killed_master_leaves_no_report_that_says_passed(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    with distributed(redis_server.url, tmp_path, "--run-time", "30s") as run:
        run.master.kill()
        _, verdict, _ = run.verdict()
    assert verdict == "failed"
