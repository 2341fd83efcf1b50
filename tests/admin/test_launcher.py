"""The admin process as the server sees it."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from presence.admin import launcher, start_message
from presence.admin.__main__ import IGNORED
from presence.admin.launcher import AdminProcess
from presence.common.logs import DirectWriter
from presence.config.settings import Settings
from presence.prefork.arbiter import Arbiter
from presence.server.listeners import CannotListen, ListenAddress

PATIENCE_S = 10.0
POPEN = subprocess.Popen
RUNNING_S = 1.0  # until the next look at a process that runs
ENDS = "import sys; sys.stdin.buffer.raw.read(4)"  # as soon as it gets the start message
HANGS = "import sys, time; sys.stdin.buffer.raw.read(9); time.sleep(60)"


class Machine:
    """Starts `program` in place of any command; "": no process can be started, because of `lack`."""

    def __init__(self) -> None:
        self.program = ENDS
        self.lack: Exception = BlockingIOError("no room for one more process")
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, _command: list[str], **how: object) -> "subprocess.Popen[bytes]":
        if not self.program:
            raise self.lack
        process = POPEN([sys.executable, "-S", "-c", self.program], **how)  # type: ignore[call-overload] # as asked
        self.started.append(process)
        return self.started[-1]

    def serve(self, workers: int = 1) -> AdminProcess:
        return AdminProcess(Settings(), "redis://h", [socket.create_server(("127.0.0.1", 0))], workers)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()
    monkeypatch.setattr(subprocess, "Popen", machine)
    yield machine
    for each in machine.started:
        each.kill()
        each.wait()


@pytest.mark.parametrize("lack", [BlockingIOError(11, "no room"), MemoryError()], ids=repr)
def test_a_server_runs_without_the_admin_process_until_it_can_be_started(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, lack: Exception
) -> None:
    machine.program, machine.lack = "", lack
    admin = machine.serve(workers=2)
    admin.reload()
    assert 0 < admin.supervise() <= launcher.RETRY_S
    machine.program = ENDS
    monkeypatch.setattr(admin, "_start_at", 0.0)
    assert admin.supervise() == RUNNING_S
    assert len(machine.started) == 1
    own = admin.line(2)
    everything = [*admin._listeners, *(end for line in admin._lines for end in line)]
    assert admin.become_worker(2) is own
    assert [each for each in everything if each.fileno() >= 0] == [own], "a worker keeps its own end only"
    own.close()


def test_an_ended_process_is_replaced_at_the_same_address_with_growing_delays(machine: Machine) -> None:
    admin = machine.serve()
    machine.started[0].wait(PATIENCE_S)
    with capture_logs() as lines:
        assert admin.supervise() == RUNNING_S  # the first replacement is immediate
    assert len(machine.started) == 2
    assert [(line["log_level"], line["status"]) for line in lines] == [("error", 0)]
    socket.create_connection(admin.address, PATIENCE_S).close()
    machine.started[1].wait(PATIENCE_S)
    assert 0 < admin.supervise() <= launcher.restart_delay_s(2)
    assert len(machine.started) == 2
    admin.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(admin.address)


def test_a_process_that_reads_no_commands_is_not_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.program = HANGS
    monkeypatch.setattr(launcher, "STOP_TIMEOUT_S", 0.2)
    admin = machine.serve()
    started_at = time.monotonic()
    for _ in range(5000):
        admin.reload()
    admin.stop()
    assert time.monotonic() - started_at < PATIENCE_S


@pytest.mark.parametrize(("path", "flags"), [([os.getcwd(), "/x"], []), (["", "/x"], []), (["/x"], ["-P"])])
def test_the_process_loads_modules_from_the_servers_directories_only(
    monkeypatch: pytest.MonkeyPatch, path: list[str], flags: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", path)
    assert launcher._path_flags() == flags


def test_a_start_message_is_read_completely_or_not_at_all() -> None:
    address = ListenAddress("127.0.0.1", 1)
    start = start_message.StartMessage(Settings(), "x" * 50_000, (3,), (4,), address, "http://127.0.0.1:1/")
    whole = start.packed()
    for sent, read in ((whole, start), (whole[:-1], None), (whole[:2], None), (b"", None)):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.send(sent[:3])
                ours.send(sent[3:])
            assert start_message.read(theirs) == read


def test_a_process_without_a_server_ends_and_ignores_signals() -> None:
    assert set(IGNORED) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    ours, theirs = socket.socketpair()
    with theirs:
        process = POPEN([sys.executable, "-m", "presence.admin"], stdin=theirs.fileno())
    ours.close()
    assert process.wait(PATIENCE_S) == 0


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as owner:
        settings = Settings(admin=f"127.0.0.1:{owner.getsockname()[1]}")
        taken = launcher.running_admin_process(settings, "", asked_for=True)
        with pytest.raises(CannotListen, match=settings.admin), taken:
            pass


def processes() -> Arbiter:
    return Arbiter(2, lambda *_: 0, ready_line="ready", drain_timeout_s=1.0, writer=DirectWriter())


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("what", ["os.fork", "socket.socketpair"])
def test_a_worker_that_cannot_be_started_is_retried_or_ends_the_start(
    what: str, was_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    watched = processes()
    watched._all_were_ready = was_ready
    monkeypatch.setattr(what, no_memory)
    place = watched._workers[0]
    watched._start(place)
    assert place.pid == 0
    assert place.start_at > time.monotonic()
    assert (watched._stopping, watched._status) == ((False, 0) if was_ready else (True, 1))


PROGRAM = """
import os, signal, socket, sys, time
from presence.common import logs
from presence.prefork import arbiter, control_pipe

def work(number, line, is_first):
    if not is_first and sys.argv[1] == "hangs":
        signal.pause()
    if not is_first and sys.argv[1] == "fails":
        return 2
    line.send(control_pipe.READY)
    line.recv(1)
    return 0

arbiter.START_TIMEOUT_S = 0.3
writer = logs.configure_directly("json")
run = arbiter.Arbiter(2, work, ready_line="ready", drain_timeout_s=5.0, writer=writer)
sys.exit(run.run())
"""


@pytest.mark.parametrize(
    ("successor", "renewed"), [("hangs", False), ("fails", False), ("becomes ready", True)]
)
def test_no_worker_drains_for_a_successor_that_does_not_become_ready(
    successor: str, *, renewed: bool
) -> None:
    command = [sys.executable, "-c", PROGRAM, successor]
    end = "rolling restart finished" if renewed else "rolling restart aborted"
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            lines.append(line)
            if line == "ready\n":
                running.send_signal(signal.SIGUSR2)
            if end in line:
                running.terminate()
    assert running.returncode == 0
    assert sum("worker drained" in line for line in lines) == (2 if renewed else 0)
    (stopping,) = [json.loads(line) for line in lines if '"stopping"' in line]
    assert stopping["workers"] == 2
