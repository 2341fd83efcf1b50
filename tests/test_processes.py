"""What is done when a worker cannot be started; the rest is tested on real processes."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from presence.logs import DirectWriter
from presence.processes import Processes


def processes() -> Processes:
    return Processes(2, lambda *_: 0, ready_line="ready", drain_timeout_s=1.0, writer=DirectWriter())


@pytest.mark.parametrize("what", ["os.fork", "socket.socketpair"])
def test_a_worker_that_cannot_be_started_is_put_off_and_the_others_go_on(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory() -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    watched = processes()
    watched._told_ready = True
    monkeypatch.setattr(what, no_memory)
    place = watched._workers[0]
    watched._start(place)
    assert place.pid == 0
    assert place.start_at > time.monotonic()
    assert not watched._stopping


def test_before_all_were_ready_that_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    starting = processes()
    monkeypatch.setattr("os.fork", no_memory)
    starting._start(starting._workers[0])
    assert starting._stopping
    assert starting._status == 1


PROGRAM = """
import os, signal, socket, sys, time
from presence import logs, orders, processes

def work(number, line, is_first):
    if not is_first and sys.argv[1] == "hangs":
        signal.pause()
    if not is_first and sys.argv[1] == "fails":
        return 2
    line.send(orders.READY)
    line.recv(1)
    return 0

processes.START_TIMEOUT_S = 0.3
writer = logs.configure_directly("json")
run = processes.Processes(2, work, ready_line="ready", drain_timeout_s=5.0, writer=writer)
sys.exit(run.run())
"""


@pytest.mark.parametrize(
    ("successor", "renewed"), [("hangs", False), ("fails", False), ("comes to work", True)]
)
def test_nobody_drains_for_a_successor_that_does_not_come_to_work(successor: str, *, renewed: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, successor]
    end = "workers are renewed" if renewed else "no more workers are renewed"
    said = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            said.append(line)
            if line == "ready\n":
                running.send_signal(signal.SIGUSR2)
            if end in line:
                running.terminate()
    assert running.returncode == 0
    assert sum("worker drained" in line for line in said) == (2 if renewed else 0)
    (stopping,) = [json.loads(line) for line in said if '"stopping"' in line]
    assert stopping["workers"] == 2
