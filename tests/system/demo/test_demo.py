"""The demo as its audience runs it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.admin.processes import answers
from tests.support.waiting import WAIT_TIMEOUT_S, wait_for

DEMO = [sys.executable, "-m", "presence", "demo"]


def test_truth_and_events_agree(redis_server: EmbeddedRedis) -> None:
    command = [*DEMO, "--no-admin", "--seconds", "25", "--clients", "100", "--redis", redis_server.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    shown_at = [float(each) for each in re.findall(r"^ *([\d.]+) s  users online", run.stdout, re.MULTILINE)]
    assert 15 < max(shown_at) < 25  # by its own clock: how long it takes to start and to end is the machine's
    assert "events match the clients" in run.stdout
    assert "88 clients stayed alive; 4 each fell silent, logged out" in run.stdout
    assert re.search(r"^offline idle_timeout +4  +1\d\.", run.stdout, re.MULTILINE)
    with open_client(redis_server.url) as client:
        assert client.dbsize() == 0, "its keys are gone"


def test_ctrl_c_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        demo = subprocess.Popen(
            [*DEMO, "--clients", "50"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": folder},
        )
        deadline = time.monotonic() + 10
        while not os.listdir(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(3)
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert demo.stdout is not None
        live_page = demo.stdout.readline().removeprefix("live page: ").strip()
        with urllib.request.urlopen(f"{live_page}healthz", timeout=10) as answer:
            assert answer.status == 200
        demo.send_signal(signal.SIGINT)
        _, output = demo.communicate(timeout=10)
        left = os.listdir(folder)
    assert len(children) == 2, "a Redis was running, and who serves operators"
    assert demo.returncode == 0
    assert output.splitlines()[-1] == "interrupted"
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not left


@contextlib.contextmanager
def demo_of_its_own(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A demo with an embedded Redis, which has begun, and its first line."""
    with subprocess.Popen(
        [*DEMO, "--clients", "50", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            line = demo.stdout.readline()
            assert line
            yield demo, line
        finally:
            demo.kill()


def child_of(demo: "subprocess.Popen[str]", words: str) -> psutil.Process:
    (found,) = [each for each in psutil.Process(demo.pid).children() if words in " ".join(each.cmdline())]
    return found


@pytest.mark.nightly
def test_a_demo_whose_redis_is_killed_ends_and_says_so() -> None:
    with demo_of_its_own("--no-admin") as (demo, _):
        child_of(demo, "redis.sock").kill()
        _, errors = demo.communicate(timeout=10)
    assert demo.returncode == 1
    assert re.fullmatch(r"presence: the embedded Redis has exited: .*", errors.splitlines()[-1])


@pytest.mark.nightly
def test_a_demo_whose_redis_is_stopped_says_so_and_goes_on() -> None:
    with demo_of_its_own("--no-admin") as (demo, _):
        assert demo.stderr is not None
        redis = child_of(demo, "redis.sock")
        redis.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        while "Redis unreachable" not in demo.stderr.readline():
            pass
        assert time.monotonic() - stopped_at < WAIT_TIMEOUT_S
        redis.send_signal(signal.SIGCONT)
        while "Redis reachable again" not in demo.stderr.readline():
            pass
        assert demo.poll() is None


@pytest.mark.nightly
def test_the_live_page_of_a_demo_is_started_again() -> None:
    with demo_of_its_own() as (demo, line):
        page = child_of(demo, "presence.admin")
        page.kill()
        page.wait(WAIT_TIMEOUT_S)
        wait_for(lambda: answers(line.removeprefix("live page: ").strip()))


def test_too_short_a_demo_is_refused() -> None:
    run = subprocess.run([*DEMO, "--seconds", "5"], capture_output=True, text=True, timeout=20, check=False)
    assert run.returncode == 2
    assert "--seconds" in run.stderr
