"""The unit for systemd: it is sound, it locks the server in, and the server works there."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loadtest.servers import PresenceServer
from presence.config.settings import Settings
from presence.prefork.arbiter import STOP_MARGIN_S
from tests.deploy.units import UNIT, allowed_calls, locked_in, value
from tests.support.managers import Manager
from tests.support.swarm import Swarm
from tests.support.waiting import wait_for
from tests.transports.certificates import write

EXPOSURE_MAX = "12"  # tenths; the network itself is most of what is left
analyzes = pytest.mark.needs("systemd-analyze")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a program that exists."""
    text = UNIT.read_text(encoding="utf-8")
    program = "/opt/presence/bin/presence "
    assert f"\nExecStart={program}serve " in text
    file = tmp_path / "presence.service"
    file.write_text(text.replace(program, f"{Path(sys.executable)} -m presence "))
    return file


def analyze(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)


@analyzes
def test_systemd_has_nothing_to_say_against_it(unit: Path) -> None:
    verified = analyze("verify", unit)
    assert (verified.returncode, verified.stderr) == (0, "")


@analyzes
def test_it_exposes_little(unit: Path) -> None:
    judged = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", unit)
    assert judged.returncode == 0, judged.stdout


def test_a_stop_may_take_as_long_as_the_server_and_wrong_settings_are_not_tried_again() -> None:
    assert float(value("TimeoutStopSec")) > Settings().drain_timeout + STOP_MARGIN_S
    assert value("RestartPreventExitStatus") == "2"


def test_a_child_that_lacks_memory_is_replaced_and_does_not_end_the_service() -> None:
    assert value("OOMPolicy") == "continue"


@analyzes
def test_what_is_refused_is_refused(tmp_path: Path) -> None:
    calls = allowed_calls()
    assert {"epoll_wait", "accept4", "prlimit64"} <= calls
    assert not calls & {"mount", "bpf", "setuid", "reboot", "sched_setaffinity"}
    script = "import os\ntry: os.chroot('/')\nexcept PermissionError: print('refused')"
    run = subprocess.run(
        [sys.executable, "-c", script], preexec_fn=locked_in(), capture_output=True, text=True, check=True
    )
    assert run.stdout == "refused\n"


def answer(url: str) -> int:
    """Return the status of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answered:
            return int(answered.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@analyzes
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--workers", "2", "--data-dir", "data", "--admin", "127.0.0.1:0"),
        ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-port", "0"),
    ],
    ids=["alone", "workers and operators", "tls"],
)
def test_a_server_works_where_it_is_locked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """With a Redis of its own, which is locked in, too."""
    write(tmp_path)
    with Manager(tmp_path) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.notify_socket)
        monkeypatch.chdir(tmp_path)
        server = PresenceServer(*flags, before=locked_in())
        try:
            assert manager.wait_for("READY")["READY"] == "1"
            with Swarm(server.address, beat_s=5) as swarm:
                swarm.log_in(["ann", "bob"])
                swarm.run(20, until=swarm.logged_in)
                os.kill(server.process.pid, signal.SIGHUP)
                wait_for(lambda: server.logged("files reloaded"))
                assert not any(client.is_closed for client in swarm.clients)
            for url in (line["url"] for line in server.logged("admin HTTP server starting")):
                wait_for(lambda url=url: answer(f"{url}readyz") == 200)  # type: ignore[misc]  # bound now
                assert answer(f"{url}metrics") == 200
                assert not server.logged("admin process exited, restarting")
        finally:
            status = server.stop()
        assert status == 0, server.lines[-5:]
