"""Servers forked from a process that has loaded the program: to load it takes most of the start of a server.

The process that forks has one thread, and is started at the first need. In front of each server is a process
that waits for its end, and reports it. Such a server differs from one that a command has started in nothing
but its command line.

Tests: `tests/support/test_preloaded.py`.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final, NoReturn

from loadtest.servers import PRESENCE, PresenceServer

ROOT: Final = Path(__file__).parents[2]
MAX_REQUEST_BYTES: Final = 200_000
REPORT_BYTES: Final = 16
LOADED: Final = (
    "presence.cli.main",
    "presence.cli.serve",
    "presence.server.process",
    "presence.server.supervisor",
)

_started_with: Final = dict(os.environ)
_asking: Final = threading.Lock()


class ForkedProcess:
    """What tests use of `subprocess.Popen`, for a process that is no child of this one.

    Args:
        reports: yields its id, and when it has ended its status.
        stderr: what it prints.
    """

    def __init__(self, reports: int, stderr: IO[str]) -> None:
        self.stderr = stderr
        self.returncode: int | None = None
        self._reports = reports
        self._reading = threading.Lock()
        self.pid = int(os.read(reports, REPORT_BYTES))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._reading:
            if self.returncode is None:
                ended = select.poll()  # which takes descriptors beyond 1,024
                ended.register(self._reports, select.POLLIN)
                if not ended.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired("presence serve", timeout or 0.0)
                self.returncode = int(os.read(self._reports, REPORT_BYTES))
                os.close(self._reports)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end is about to be reported
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PreloadedServer(PresenceServer):
    """A server that need not be loaded, if it is the plain program in the usual environment."""

    def _start(
        self, command: list[str], environment: dict[str, str], before: Callable[[], None] | None
    ) -> "subprocess.Popen[str]":
        plain = [sys.executable, *PRESENCE]
        if command[: len(plain)] != plain or before or _of_start(environment) != _of_start(_started_with):
            return super()._start(command, environment, before)
        return _fork(command[len(plain) :], environment)  # type: ignore[return-value] # what is used of it


def _of_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that count when a program starts, and not later."""
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LD_"))}


@cache
def _forker() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [sys.executable, "-m", "tests.support.preloaded", str(there.fileno())]
        return here, subprocess.Popen(command, cwd=ROOT, pass_fds=[there.fileno()])  # ends with this process


def _fork(arguments: list[str], environment: Mapping[str, str]) -> ForkedProcess:
    request = json.dumps([arguments, os.getcwd(), *zip(*environment.items(), strict=True)]).encode()
    reports, report = os.pipe()
    read, write = os.pipe()
    with _asking:
        socket.send_fds(_forker()[0], [request], [write, report])
    os.close(write)
    os.close(report)
    return ForkedProcess(reports, os.fdopen(read, encoding="utf-8", errors="replace"))


def _serve(requests: socket.socket) -> int:
    """Fork a server for each request; return its exit status, in the server's process."""
    for name in LOADED:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes in between
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 2)
        if not request:
            return 0
        if os.fork() == 0:
            break
        for each in descriptors:
            os.close(each)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stderr, report = descriptors
    if server := os.fork():
        os.close(stderr)
        _wait_for(server, report)
    os.close(report)
    os.dup2(stderr, sys.stderr.fileno())
    os.close(stderr)
    arguments, folder, names, values = json.loads(request)
    sys.argv[1:] = arguments
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(zip(names, values, strict=True))
    status: int = import_module("presence.__main__").main()
    return status


def _wait_for(server: int, report: int) -> NoReturn:
    os.write(report, f"{server:{REPORT_BYTES}}".encode())
    _, status = os.waitpid(server, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(report, f"{os.waitstatus_to_exitcode(status):{REPORT_BYTES}}".encode())
    os._exit(0)


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
