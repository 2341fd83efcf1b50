"""SIGHUP to a real `presence serve` reloads files and does nothing else."""

import os
import signal
import time
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
        # Read in a thread of its own, beside the other files.
        (changed,) = wait_for(lambda: server.logged("settings changed, restart needed"))
        assert changed["settings"] == ["tick"]
        assert [line["file"] for line in server.logged("settings file read")] == [str(file)]


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_with_an_unusable_settings_file_disturbs_nobody(
    redis_server: EmbeddedRedis, tmp_path: Path, workers: int
) -> None:
    file = tmp_path / "presence.toml"
    file.write_text("tick = 0.5")
    flags = ("--redis", redis_server.url, "--config", str(file), "--workers", str(workers))
    with running_server(*flags) as server, Swarm(server.address, beat_s=5) as swarm:
        swarm.log_in(["ann", "bob"])
        swarm.run(WAIT_TIMEOUT_S, until=swarm.logged_in)
        for number, bad in enumerate(["x = " + 3000 * "[" + 3000 * "]", "tick = 0x" + 6000 * "f", None], 1):
            if bad is None:
                file.unlink()
                os.mkfifo(file)
            else:
                file.write_text(bad)
            os.kill(server.process.pid, signal.SIGHUP)
            wait_for(lambda wanted=number: len(server.logged("settings file is now invalid")) == wanted)  # type: ignore[misc] # bound now
            # Each worker, before the next signal: two that wait for a busy process are one to it.
            wait_for(lambda wanted=number: len(server.logged("files reloaded")) == wanted * workers)  # type: ignore[misc] # bound now
        assert not any(client.is_closed for client in swarm.clients)


HANGS = """
import os, time
from presence.config import loader
load, before = loader.load, []

def hangs(*args, **options):
    if before:
        os.write(2, b"hangs\\n")
        time.sleep(60)
    before.append(True)
    return load(*args, **options)

loader.load = hangs
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_disk_below_the_settings_file_delays_neither_clients_nor_the_stop(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_server("--redis", redis_server.url, "--workers", str(workers)) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: len(server.logged("hangs")) == 1)
        wait_for(lambda: len(server.logged("files reloaded")) == workers)
        with Swarm(server.address, beat_s=5) as swarm:
            swarm.log_in(["ann"])
            swarm.run(WAIT_TIMEOUT_S, until=swarm.logged_in)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 5, "the file would be read for a minute"


SLOW = HANGS.replace("time.sleep(60)", "time.sleep(0.5)")


@pytest.mark.parametrize("workers", [2])
def test_settings_that_change_while_they_are_reread_are_read_again(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_server("--redis", redis_server.url, "--workers", str(workers)) as server:
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: len(server.logged("hangs")) == 1)
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: len(server.logged("hangs")) == 2)
        assert not server.logged("settings not reread")


FAILS = HANGS.replace("time.sleep(60)", 'raise LookupError("a mistake")')


@pytest.mark.parametrize("workers", [1])
def test_a_mistake_while_settings_are_reread_is_logged_once(
    redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running_server("--redis", redis_server.url, "--workers", str(workers)) as server:
        for number in range(1, 3):
            os.kill(server.process.pid, signal.SIGHUP)
            wait_for(lambda wanted=number: len(server.logged("hangs")) == wanted)  # type: ignore[misc] # bound now
            wait_for(lambda wanted=number: len(server.logged("settings not reread")) >= wanted)  # type: ignore[misc] # bound now
        assert server.stop() == 0
    lines = server.logged("settings not reread")
    assert ["a mistake" in str(line.get("exception")) for line in lines] == [True, True]
