"""Processes of a load test: one that is stopped, and none that is left behind."""

import os
import signal
import time
from argparse import ArgumentTypeError

import psutil
import pytest

from loadtest.arguments import above_0, at_least_0, from_0, from_1, share
from loadtest.processes import WorkerProcess, kill_tree

END_S = 20.0


@pytest.mark.timeout(END_S * 2)
def test_a_worker_that_is_stopped_is_not_waited_for() -> None:
    with WorkerProcess() as worker:
        stopped = psutil.Process(worker.submit(os.getpid).result(END_S))
        worker.submit(time.sleep, 600.0)
        stopped.send_signal(signal.SIGSTOP)
    assert not stopped.is_running()


def test_a_tree_of_processes_is_killed() -> None:
    shell = psutil.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"])
    while len(children := shell.children()) < 2:
        time.sleep(0.01)
    kill_tree(shell.pid)
    shell.wait(END_S)
    psutil.wait_procs(children, END_S)
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in children)
    kill_tree(shell.pid)  # there is none any more


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (above_0, "0.5", ("0", "-1", "nan", "inf", "x")),
        (at_least_0, "0", ("-0.1", "nan", "inf", "")),
        (from_1, "1", ("0", "1.5", "x")),
        (from_0, "0", ("-1", "nan")),
        (share, "0", ("1", "-0.1", "nan")),
    ],
)
def test_numbers_are_checked_where_they_enter(kind: object, right: str, wrong: tuple[str, ...]) -> None:
    assert callable(kind)
    assert kind(right) == float(right)
    for text in wrong:
        with pytest.raises((ValueError, ArgumentTypeError)):
            kind(text)
