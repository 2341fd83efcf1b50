"""SIGHUP to a real `presence serve` reloads files and does nothing else."""

import os
import signal
from pathlib import Path

import pytest

from presence.store.embedded import EmbeddedRedis
from tests.support.server_process import running_server
from tests.support.swarm import Swarm
from tests.support.waiting import WAIT_TIMEOUT_S, wait_for


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reloads_files_reports_settings_that_need_a_restart_and_drops_no_client(
    redis_server: EmbeddedRedis, tmp_path: Path, workers: int
) -> None:
    file = tmp_path / "presence.toml"
    file.write_text("tick = 0.5")
    flags = ("--redis", redis_server.url, "--config", str(file), "--workers", str(workers))
    with running_server(*flags) as server:
        with Swarm(server.address, beat_s=5) as swarm:
            swarm.log_in(["ann", "bob"])
            swarm.run(WAIT_TIMEOUT_S, until=swarm.logged_in)
            file.write_text("tick = 0.4")
            os.kill(server.process.pid, signal.SIGHUP)
            wait_for(lambda: len(server.logged("files reloaded")) == workers)
            if workers > 1:  # like a service manager that signals every process
                os.kill(server.workers()[1], signal.SIGHUP)
                wait_for(lambda: len(server.logged("files reloaded")) == workers + 1)
            assert not any(client.is_closed for client in swarm.clients)
        (changed,) = [line for line in server.lines if line["event"] == "settings changed, restart needed"]
        assert changed["settings"] == ["tick"]
        assert [line["file"] for line in server.logged("settings file read")] == [str(file)]
