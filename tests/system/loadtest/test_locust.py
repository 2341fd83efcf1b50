"""The devices under locust, against a real server; always in a process of its own (gevent)."""

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.check import check_control
from loadtest.processes import LOCUSTFILE, run_locust
from presence.loadtest.options import add_options
from presence.store.embedded import EmbeddedRedis
from tests.support.events import assert_alternation, read_events
from tests.support.server_process import running_server

ROOT = LOCUSTFILE.parent.parent
README = LOCUSTFILE.with_name("README.md").read_text("utf-8")
SERVER = ("--idle-timeout", "3", "--tick", "0.5", "--disconnect-grace", "1.5")
DEVICES = ("--tick", "0.5", "--disconnect-grace", "1.5", "--action-every", "2")


def test_a_server_that_keeps_its_promises_passes(redis_server: EmbeddedRedis) -> None:
    shards, processes = 4, ("--processes", "2")
    with running_server("--redis", redis_server.url, "--shards", str(shards), *SERVER) as server:
        host = f"127.0.0.1:{server.address[1]}"
        report = run_locust(host, redis_server.url, *DEVICES, *processes, users=200, seconds=10)
    events = read_events(redis_server.url, shards)
    silences, beyond = (
        report.row("offline idle_timeout"),
        report.row("offline idle_timeout, beyond what was due"),
    )
    closed, logouts = report.row("offline closed"), report.row("offline logout")
    print(
        f"locust, 200 devices, T = 3 s, {shards} shards: {silences.requests} silences found, beyond T "
        f"p50 {beyond.median:.0f} max {beyond.max:.0f} ms, {closed.requests} lost connections, "
        f"{logouts.requests} logouts, failures {report.failures}"
    )
    assert (report.status, report.failures, report.broken) == (0, 0, {})
    assert min(silences.requests, closed.requests, logouts.requests) >= 10
    assert report.rows["device", "message"].requests > 10
    assert len({event["uid"] for event in events}) >= 200  # locust may move devices to a worker that is late
    for shard in range(shards):
        assert_alternation([event for event in events if event["shard"] == shard])


@pytest.mark.nightly
def test_a_server_without_its_guard_fails() -> None:
    """The negative control: were it to pass, the load test would prove nothing."""
    assert check_control(users=200)


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
def test_a_redis_that_is_not_there_refuses_to_start(tmp_path: Path, flags: tuple[str, ...]) -> None:
    url = f"unix://{tmp_path}/nobody.sock"
    report = run_locust("127.0.0.1:1", url, *flags, users=1, seconds=1)
    assert report.status == 1
    assert not report.rows


class WebUi:
    """Locust with its web UI, and no run started yet."""

    def __init__(self, *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--web-port", str(port), *flags]
        self.process = subprocess.Popen([*command, "--web-host", "127.0.0.1"], cwd=ROOT)
        give_up = time.monotonic() + 15
        while time.monotonic() < give_up:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)

    def get(self, path: str, **form: object) -> dict[str, Any]:
        """Get a page; with a form, post it."""
        data = urllib.parse.urlencode(form).encode() if form else None
        with urllib.request.urlopen(self._url + path, data, timeout=10) as answer:
            page: dict[str, Any] = json.load(answer)
            return page

    def run(self, **form: object) -> dict[str, int]:
        """Start a run and wait for its end; return the number of requests by name."""
        assert self.get("/swarm", **form)["success"]
        self._wait_for("running", "spawning")  # the answer may be cached, and the former run's
        stats = self._wait_for("stopped")
        return {row["name"]: row["num_requests"] for row in stats["stats"]}

    def _wait_for(self, *states: str) -> dict[str, Any]:
        give_up = time.monotonic() + 20
        while (stats := self.get("/stats/requests"))["state"] not in states and time.monotonic() < give_up:
            time.sleep(0.1)
        assert stats["state"] in states
        return stats


@contextlib.contextmanager
def web_ui(*flags: str) -> Iterator[WebUi]:
    ui = WebUi(*flags)
    try:
        yield ui
    finally:
        ui.process.terminate()
        ui.process.wait(10)


def test_the_web_ui_starts_one_run_after_another(redis_server: EmbeddedRedis) -> None:
    with running_server("--redis", redis_server.url, *SERVER) as server:
        host = f"127.0.0.1:{server.address[1]}"
        with web_ui("--redis-url", redis_server.url, *DEVICES) as ui:
            for _ in range(2):
                assert ui.run(user_count=20, spawn_rate=20, host=host, run_time="4s")["online"] >= 20
    assert ui.process.returncode == 0
    assert len({event["uid"] for event in read_events(redis_server.url)}) == 40


def test_the_readmes_quick_start_works(redis_server: EmbeddedRedis) -> None:
    found = re.search(r"```sh\n(locust .+?)```", README, re.DOTALL)
    assert found
    with running_server("--redis", redis_server.url, "--idle-timeout", "3") as server:
        command = found.group(1).replace("\\\n", " ").replace("500", "50").replace("1m", "4s")
        command = command.replace("127.0.0.1:7400", f"127.0.0.1:{server.address[1]}")
        words = shlex.split(command.replace("redis://localhost:6379", redis_server.url))
        run = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    assert run.returncode == 0, run.stderr
    assert len({event["uid"] for event in read_events(redis_server.url)}) == 50


def test_the_readme_lists_every_option_with_its_default() -> None:
    options: dict[str, object] = {}

    class OptionRecorder:
        def add_argument(self, flag: str, default: object = "", **_: object) -> None:
            options[flag] = f"{default:g}" if isinstance(default, float) else str(default)

    add_options(OptionRecorder())
    rows = dict(re.findall(r"^\| `(--[a-z0-9-]+)` \| (.*?) ?\|", README, re.MULTILINE))
    del rows["--host"]  # locust's own
    assert rows == options
