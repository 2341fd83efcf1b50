"""The devices under locust, against a real server; always in a process of its own (gevent)."""

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.check import check_control
from loadtest.processes import LOCUSTFILE, run_locust
from loadtest.servers import free_port
from presence.loadtest.options import add_options
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import open_client
from tests.support.credentials import SECRET, write_keys
from tests.support.events import assert_alternation, read_events
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server
from tests.transports import certificates

ROOT = LOCUSTFILE.parent.parent
README = LOCUSTFILE.with_name("README.md").read_text("utf-8")
SERVER = ("--idle-timeout", "3", "--tick", "0.5", "--disconnect-grace", "1.5")
SLOW = ("--login-p99-max", "5", "--answer-p99-max", "5")  # other tests run beside these
DEVICES = ("--tick", "0.5", "--disconnect-grace", "1.5", "--action-every", "2", *SLOW)


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
    assert f"cannot reach Redis at {url}" in report.reasons[0]


@pytest.mark.nightly
def test_devices_log_in_over_tls_with_tokens_and_consumers_read_their_events(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    cert, key = certificates.write(tmp_path)
    ca = tmp_path / "ca.pem"
    certificates.authority().cert_pem.write_to_path(str(ca))
    tls = ("--tls-only", "--tls-cert", str(cert), "--tls-key", str(key))
    server_flags = ("--redis", redis_server.url, "--token-keys", str(keys), *tls, *SERVER)
    with running_server(*server_flags) as server:
        host = f"presences://localhost:{server.address[1]}"
        flags = ("--tls-ca", str(ca), "--token-key-file", str(keys), "--consumers", "2", "--processes", "2")
        report = run_locust(host, redis_server.url, *DEVICES, *flags, users=100, seconds=6)
        untrusting = run_locust(host, redis_server.url, "--token-key-file", str(keys), users=1, seconds=2)
        plain = run_locust(server.host, redis_server.url, users=1, seconds=2)
        with open_client(redis_server.url) as client:
            groups = client.xinfo_groups("presence:{0}:events")
    assert (report.status, report.failures, report.reasons) == (0, 0, [])
    assert report.row("online").requests >= 100
    # Each process has a group, which gets the events of all.
    assert report.row("consumed, since the decision").requests > report.row("online").requests
    assert not groups
    assert untrusting.status == 1
    assert any("certificate verify failed" in reason for reason in untrusting.reasons)
    assert "protocol_error: this port is for TLS (with TLS: --host presences://" in plain.reasons[0]


@pytest.mark.nightly
def test_a_command_prints_the_tokens_and_goodbyes_are_judged_without_redis(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    printed = f"{sys.executable} -m presence token sign --keys {keys} --uid {{uid}}"
    without = ("--no-events", "--scenario", "silence", "--together-every", "4", "--tick", "0.5")
    with running_server("--redis", redis_server.url, "--token-keys", str(keys), *SERVER) as server:
        host = f"127.0.0.1:{server.address[1]}"
        report = run_locust(host, "", *without, "--token-command", printed, users=4, seconds=20)
        failed = run_locust(host, "", *without, "--token-command", "false {uid}", users=1, seconds=12)
    assert (report.status, report.failures) == (0, 0)
    assert report.rows["device", "login"].requests >= 4
    assert report.rows["device", "goodbye idle_timeout"].requests >= 4
    assert not report.row("online").requests
    assert failed.status == 1
    assert any("--token-command ended with status 1" in reason for reason in failed.reasons)


@pytest.mark.nightly
def test_a_server_that_was_killed_fails_the_run_and_the_report_says_since_when(
    redis_server: EmbeddedRedis,
) -> None:
    with PreloadedServer("--redis", redis_server.url, *SERVER) as server:
        killed_at: list[float] = []

        def kill_when_all_are_online() -> None:
            with open_client(redis_server.url) as client:
                sessions: Any = 0
                while sessions < 100 and server.process.poll() is None:
                    time.sleep(0.1)
                    sessions = sum(client.hlen(key) for key in client.keys("presence:{0}:node:*:sessions"))
            time.sleep(2.0)
            server.process.kill()
            killed_at.append(time.time())

        killer = threading.Thread(target=kill_when_all_are_online)
        killer.start()
        flags = ("--scenario", "steady", "--processes", "2")
        report = run_locust(server.host, redis_server.url, *DEVICES, *flags, users=100, seconds=10)
        killer.join()
    lost = {error["error"]: error for error in report.errors if error["name"] == "connection lost"}
    assert report.status == 1
    assert lost["closed by the server"]["occurrences"] == 100
    assert lost["closed by the server"]["first_seen"] == pytest.approx(killed_at[0], abs=2)
    assert any("100 x connection lost: closed by the server" in reason for reason in report.reasons)


@pytest.mark.nightly
def test_the_master_sums_up_the_broken_promises_of_workers_elsewhere(redis_server: EmbeddedRedis) -> None:
    # Devices that believe in a longer grace than the server's count its events as too early.
    port, liars = str(free_port()), ("--disconnect-grace", "2.9", "--action-every", "1", "--away-share", "1")
    flags = (*liars, "--silence-share", "0", "--logout-share", "0", "--master", "--expect-workers", "2")
    command = [sys.executable, "-m", "presence.loadtest", "--worker", "--master-port", port]
    with running_server("--redis", redis_server.url, *SERVER) as server, contextlib.ExitStack() as workers:
        for _ in range(2):
            worker = subprocess.Popen(command, cwd=ROOT)
            workers.callback(worker.wait, 20)
        report = run_locust(
            server.host, redis_server.url, *flags, "--master-bind-port", port, users=100, seconds=8
        )
    early = [error for error in report.errors if error["error"] == "offline event within the grace"]
    assert report.status == 1
    assert sum(error["occurrences"] for error in early) > 20
    assert report.row("offline closed").failures == sum(error["occurrences"] for error in early)
    assert {len(error["examples"]) for error in early} == {5}
    assert any("offline event within the grace" in reason for reason in report.reasons)


@pytest.mark.nightly
def test_what_was_not_due_at_the_end_is_counted_over_all_workers(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    path, port = tmp_path / "report.json", str(free_port())
    flags = (
        "--headless",
        "--users",
        "20",
        "--spawn-rate",
        "20",
        "--run-time",
        "3s",
        "--json-report",
        str(path),
    )
    ports = ("--processes", "2", "--master-bind-port", port, "--master-port", port)
    silences = ("--silence-share", "1", "--away-share", "0", "--logout-share", "0", "--action-every", "0.1")
    with running_server("--redis", redis_server.url) as server:
        target = ("--host", server.host, "--redis-url", redis_server.url)
        run = subprocess.run(
            [sys.executable, "-m", "presence.loadtest", *flags, *ports, *silences, *target],
            cwd=ROOT,
            check=False,
            timeout=60,
        )
    report = json.loads(path.read_text())
    assert (run.returncode, report["verdict"], report["not_due"]) == (0, "passed", 20)


@pytest.mark.nightly
def test_a_silence_that_never_began_fails(redis_server: EmbeddedRedis) -> None:
    together = ("--scenario", "silence", "--together-every", "1e9")
    with running_server("--redis", redis_server.url, *SERVER) as server:
        report = run_locust(server.host, redis_server.url, *together, users=2, seconds=2)
    assert (report.status, report.failures) == (1, 0)
    assert "--scenario silence has judged nothing" in report.reasons[0]


@pytest.mark.nightly
def test_another_prefix_than_the_servers_is_suspected(redis_server: EmbeddedRedis) -> None:
    flags = ("--redis-prefix", "other", "--scenario", "steady")
    with running_server("--redis", redis_server.url, *SERVER) as server:
        report = run_locust(server.host, redis_server.url, *flags, users=2, seconds=4)
    assert report.status == 1
    assert "2 x online: no online event in time, nor any other" in report.reasons[0]


def test_the_help_lists_our_options_and_locusts() -> None:
    command = [sys.executable, "-m", "presence.loadtest", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    own, _, locusts = run.stdout.partition("Usage: locust")
    assert all(flag in own for flag in ("--redis-url", "--scenario", "--slack", "--json-report"))
    assert "--run-time" in locusts


@pytest.mark.nightly
def test_the_readmes_own_device_works(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.+?)```", README, re.DOTALL)
    assert found
    (tmp_path / "friends.py").write_text(found.group(1))
    with running_server("--redis", redis_server.url, *SERVER) as server:
        report = run_locust(
            server.host,
            redis_server.url,
            *DEVICES,
            users=60,
            seconds=6,
            locustfile=tmp_path / "friends.py",
        )
    assert (report.status, report.failures) == (0, 0)
    assert min(report.rows["device", name].requests for name in ("watch", "greeting")) >= 10


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

    def page(self, path: str, **form: object) -> str:
        """Get a page; with a form, post it."""
        data = urllib.parse.urlencode(form).encode() if form else None
        with urllib.request.urlopen(self._url + path, data, timeout=10) as answer:
            return str(answer.read(), "utf-8")

    def get(self, path: str, **form: object) -> dict[str, Any]:
        page: dict[str, Any] = json.loads(self.page(path, **form))
        return page

    def run(self, **form: object) -> dict[str, int]:
        """Start a run and wait for its end; return the number of requests by name."""
        assert self.get("/swarm", **form)["success"]
        self._wait_for("running", "spawning")  # the answer may be cached, and the former run's
        stats = self._wait_for("stopped")
        return {row["name"]: row["num_requests"] for row in stats["stats"]}

    def count_of_runs(self) -> int:
        """Return how many descriptors runs have: epoll sets, and connections to Redis."""
        sets = [
            each
            for each in Path(f"/proc/{self.process.pid}/fd").iterdir()
            if "eventpoll" in str(each.readlink())
        ]
        return len(sets) + len(psutil.Process(self.process.pid).net_connections("unix"))

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


@pytest.mark.nightly
def test_the_web_ui_starts_one_run_after_another(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    with running_server("--redis", redis_server.url, *SERVER) as server:
        host = f"127.0.0.1:{server.address[1]}"
        with web_ui("--redis-url", redis_server.url, *DEVICES) as ui:
            form = ui.page("/")
            assert "answer_p99_max" in form
            assert not any(name in form for name in ("redis_url", "token_command", redis_server.url))
            descriptors: list[int] = []
            for _ in range(2):
                run = {"user_count": 20, "spawn_rate": 20, "host": host, "run_time": "4s"}
                assert ui.run(**run, token_command=f"touch {tmp_path}/{{uid}}")["online"] >= 20
                descriptors.append(ui.count_of_runs())
    assert ui.process.returncode == 0
    assert descriptors[1] == descriptors[0]
    assert not [*tmp_path.iterdir()]  # a page chooses no command to run
    assert len({event["uid"] for event in read_events(redis_server.url)}) == 40


def verdict_of(path: Path, *words: str) -> tuple[int, str, list[str]]:
    """Run locust to its end; return exit status, verdict and reasons."""
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--json-report", str(path), *words]
    ended = subprocess.run(command, cwd=ROOT, check=False, timeout=60)
    report = json.loads(path.read_text())
    return ended.returncode, report["verdict"], report["reasons"]


def test_a_page_whose_run_had_no_device_does_not_pass(tmp_path: Path) -> None:
    page = ("--web-host", "127.0.0.1", "--web-port", str(free_port()), "--autostart", "--autoquit", "0")
    load = ("--host", "127.0.0.1:1", "--no-events", "--users", "1", "--run-time", "1s")
    found = verdict_of(tmp_path / "report.json", *page, *load, "--failures-max", "1000")
    assert found[:2] == (1, "failed")
    assert "no device logged in" in found[2]


def test_a_page_without_a_run_has_judged_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with web_ui("--no-events", "--json-report", str(report)) as ui:
        pass
    assert ui.process.returncode == 0
    assert json.loads(report.read_text())["verdict"] == "failed"


def test_a_report_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "report.json"
    load = ("--headless", "--host", "127.0.0.1:1", "--no-events", "--run-time", "30s")
    command = [sys.executable, "-m", "presence.loadtest", *load, "--json-report", str(path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=20)
    assert run.returncode == 1
    assert f"--json-report {path}: No such file or directory" in run.stderr


@pytest.mark.nightly
def test_an_error_in_the_judge_fails_the_run(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.py"
    faulty.write_text(
        "from presence.loadtest.locustfile import DeviceUser\n"
        "from presence.loadtest.run import DeviceRun\n"
        "DeviceRun._read_rest = None\n"
    )
    with running_server("--redis", redis_server.url, *SERVER) as server:
        report = run_locust(server.host, redis_server.url, *DEVICES, users=2, seconds=2, locustfile=faulty)
    assert report.status == 1
    assert "the run ended before it was judged" in report.reasons


def test_the_readmes_quick_start_works(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    found = re.search(r"```sh\n\.venv/bin/python (-m presence.+?)```", README, re.DOTALL)
    assert found
    with running_server("--redis", redis_server.url, "--idle-timeout", "3") as server:
        command = found.group(1).replace("\\\n", " ").replace("500", "50").replace("1m", "4s")
        command = command.replace("127.0.0.1:7400", server.host).replace("report.", f"{tmp_path}/report.")
        words = shlex.split(re.sub(r"unix:\S+", redis_server.url, command))
        run = subprocess.run(
            [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "passed"
    assert (tmp_path / "report.html").exists()
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
