"""The files of deploy/ as they are shipped, around real processes, as far as this machine can run them.

The unit's filter of system calls and its limits are those of a real service; namespaces are left out, except
in the container. Held: what deploy/README.md tells an operator to do works, and what is killed is replaced.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from loadtest.servers import PresenceServer
from presence import protocol
from presence.protocol import Kind
from presence.store.embedded import EmbeddedRedis, embedded_redis
from tests.admin.processes import ADMIN, admin_of, children, get, url_of
from tests.deploy.container_files import CONTAINER, POD, pod_variables
from tests.deploy.test_metrics import alerts, queries
from tests.deploy.units import locked_in, value
from tests.support.credentials import SECRET, write_keys
from tests.support.phone import Phone
from tests.support.waiting import wait_for
from tests.system.deploy.test_container import PROGRAMS, asked, contained
from tests.system.deploy.test_haproxy import Haproxy, answer, dial, flags_behind_it, readyz
from tests.system.deploy.test_redis import USERS, Configured, filled_in
from tests.system.matrices.test_children import is_ready, is_redis
from tests.transports import certificates

PIDS: Final = Path("/sys/fs/cgroup/pids")
REPLACED_S: Final = 10.0


def held(cell: str, **figures: object) -> None:
    print("held:", cell, *(f"{name}={figure}" for name, figure in figures.items()))


IN_SMALL: Final = {"workers, data"}

# The unit


@contextlib.contextmanager
def task_limit() -> Iterator[Callable[[], None]]:
    """Yield a hook for a child that puts it under the unit's TasksMax, where this process may do so."""
    place = PIDS / f"presence-{os.getpid()}"

    def enter() -> None:
        (place / "cgroup.procs").write_text(str(os.getpid()))

    try:
        place.mkdir()
        (place / "pids.max").write_text(value("TasksMax"))
    except OSError:
        print("not tried: TasksMax")
        yield lambda: None
        return
    try:
        yield enter
    finally:
        wait_for(lambda: not (place / "cgroup.procs").read_text())
        place.rmdir()


def file_limit() -> None:
    """Set the unit's LimitNOFILE, or as much of it as this process may."""
    files = int(value("LimitNOFILE"))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


SERVED: Final = {
    "alone": (),
    "workers, data": ("--workers", "3", "--data-dir", "data", "--shards", "4"),
    "tls": ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-port", "0"),
}


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize(
    "served",
    [pytest.param(each, marks=() if each in IN_SMALL else pytest.mark.nightly) for each in SERVED],
)
def test_the_unit(served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    with task_limit() as limited:
        lock_in = locked_in()

        def before() -> None:
            limited()
            file_limit()
            lock_in()

        server = PresenceServer(*ADMIN, *SERVED[served], before=before)
        try:
            with contextlib.closing(Phone(server.address)) as phone:
                assert phone.ask(protocol.login("ann", id=1)).kind == Kind.OK
                wait_for(partial(is_ready, url_of(server)))
                assert "presence_connections" in get(url_of(server), "metrics")
                os.kill(server.process.pid, signal.SIGHUP)
                wait_for(lambda: server.logged("files reloaded"))
                held(f"unit, {served}: login, /readyz, /metrics, SIGHUP")
                for name in ("admin", "redis", *(["worker"] if "--workers" in SERVED[served] else [])):
                    took_s = kill_and_wait(server, name)
                    held(f"unit, {served}: {name} killed, replaced", after_s=round(took_s, 1))
            began = time.monotonic()
            assert server.stop() == 0, server.lines[-5:]
            took_s = time.monotonic() - began
            assert took_s < float(value("TimeoutStopSec"))
            held(f"unit, {served}: SIGTERM, status 0", after_s=round(took_s, 1))
        finally:
            server.stop()


def kill_and_wait(server: PresenceServer, name: str) -> float:
    """Kill a child, and wait for the log line of its successor; return the seconds."""

    def count() -> int:
        return len(server.logged(event))

    pids = {"admin": lambda: admin_of(server), "worker": lambda: server.workers()[2]}
    pids["redis"] = lambda: next(each for each in children(server.process.pid) if is_redis(each))
    event = {
        "admin": "admin HTTP server ready",
        "redis": "embedded Redis restarted",
        "worker": "worker started",
    }[name]
    before, victim, began = count(), pids[name](), time.monotonic()
    os.kill(victim, signal.SIGKILL)
    if name == "admin":
        wait_for(lambda: admin_of(server, victim), REPLACED_S)
        wait_for(partial(is_ready, url_of(server)), REPLACED_S)
    else:
        wait_for(lambda: count() > before, REPLACED_S)
    return time.monotonic() - began


@pytest.mark.needs("systemd-analyze")
@pytest.mark.needs("haproxy")
def test_haproxy_in_front_of_the_unit(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    flags = ["--redis", redis_server.url, *flags_behind_it(tmp_path)]
    with PresenceServer(*flags, before=locked_in()) as server:
        wait_for(lambda: readyz(server)[0] == HTTPStatus.OK)  # or the proxy takes it out at first
        with contextlib.closing(Haproxy([server], tmp_path)) as proxy:
            wait_for(lambda: proxy.said.count("Server presence/b-2 is DOWN") == 1)
            with dial(proxy, "127.0.0.5") as sock:
                assert answer(sock, "ann").kind == Kind.OK
            os.kill(admin_of(server), signal.SIGKILL)
            time.sleep(2.0)  # checks come five times a second
            assert "/a-" not in "".join(line for line in proxy.said.splitlines() if "DOWN" in line)
            with dial(proxy, "127.0.0.5") as sock:
                assert answer(sock, "bob").kind == Kind.OK
        assert server.stop() == 0
    held("haproxy before the unit: login; again after the admin process was killed")


# Redis


class Command(NamedTuple):
    user: str
    words: str
    status: int = 0
    input: str = ""


COMMANDS: Final = [
    Command("operator", "status ann --json"),
    Command("reader", "status ann --json"),
    Command("operator", "nodes"),
    Command("operator", "explain ann"),
    Command("operator", "kick ann"),
    Command("operator", "ban eve --for 1m"),
    Command("operator", "bans"),
    Command("operator", "unban eve"),
    Command("operator", "forget nobody"),
    Command("operator", "advise"),
    Command("operator", "rebalance --dry-run"),
    Command("operator", "rebalance --stop"),
    Command("followups", "followups add ann --after 3600 --name cart"),
    Command("followups", "followups list"),
    Command("followups", "followups cancel --uid ann"),
    Command("reader", "kick ann", 1),
    Command("subscriber", "ban eve --for 1m", 1),
]
RUNNING: Final = {
    "subscriber": "tail",
    "followups": "followups run --config rules.toml",
    "webhooks": "webhooks run --url http://127.0.0.1:9/ --secret-file secret",
}


@pytest.mark.nightly
@pytest.mark.needs("redis-server")
def test_the_users_of_redis(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[followups]]\nname = "bye"\nafter = 60\n')
    (tmp_path / "secret").write_text("a secret of the test")
    (tmp_path / "secret").chmod(0o600)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PRESENCE_")}

    def words_of(command: Command) -> list[str]:
        url = redis.url(f"presence-{command.user}")
        return [sys.executable, "-m", "presence", *command.words.split(), "--redis", url]

    with contextlib.closing(Configured("redis-server", tmp_path, filled_in(USERS))) as redis:
        with PresenceServer("--redis", redis.url("presence-server"), *ADMIN) as server:
            with contextlib.closing(Phone(server.address)) as phone:
                assert phone.ask(protocol.login("ann", id=1)).kind == Kind.OK
                wait_for(partial(is_ready, url_of(server)))
                for command in COMMANDS:
                    run = subprocess.run(
                        words_of(command),
                        cwd=tmp_path,
                        env=environment,
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    assert run.returncode == command.status, (command, run.stderr, run.stdout)
                    assert ("NOPERM" in run.stderr or "permission" in run.stderr) == (command.status == 1), (
                        run.stderr
                    )
                    held(f"Redis user presence-{command.user}: {command.words}", status=run.returncode)
                for user, words in RUNNING.items():
                    process = subprocess.Popen(
                        words_of(Command(user, words)),
                        cwd=tmp_path,
                        env=environment,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(3.0)
                    assert process.poll() is None, process.communicate()[1]
                    process.send_signal(signal.SIGINT)
                    said = process.communicate(timeout=20)[1]
                    assert "NOPERM" not in said
                    held(f"Redis user presence-{user}: {words}", status=process.returncode)
            assert not server.failures()


# Prometheus and Grafana


def test_each_metric_of_alerts_and_dashboard_is_in_a_real_scrape(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    cert, key = certificates.write(tmp_path)
    (tmp_path / "presence.toml").write_text('[[followups]]\nname = "bye"\nafter = 60\n')
    flags = ["--token-keys", str(keys), "--tls-cert", str(cert), "--tls-key", str(key), "--tls-port", "0"]
    flags += ["--config", str(tmp_path / "presence.toml"), "--workers", "2", "--rooms", "open"]
    limited = ("--maxmemory", "4gb")  # as in redis.conf
    expressions = [*(alert.expression for alert in alerts()), *queries()]
    asked_for = {name for each in expressions for name in re.findall(r"\bpresence_[a-z_]+", each)}
    # Those of `webhooks run` are not the server's; see tests/deploy/test_metrics.py.
    asked_for = {name for name in asked_for if not name.startswith("presence_webhook_")}
    assert len(asked_for) > 60

    def missing() -> set[str]:
        has = set(re.findall(r"^# TYPE (\S+) ", get(url_of(server), "metrics"), re.MULTILINE))
        return asked_for - has - {f"{name}_{part}" for name in has for part in ("bucket", "sum", "count")}

    with (
        embedded_redis(extra=limited) as redis,
        PresenceServer("--redis", redis.url, *ADMIN, *flags) as server,
    ):
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not missing())  # workers begin one after another
        assert missing() == set()
    held("alerts and dashboard: every metric is in a scrape", metrics=len(asked_for))


# Kubernetes


def probed(url: str) -> tuple[int, dict[str, Any]]:
    """Return the answer to a probe, sent again while it fails: the last sample may be of the start."""
    for _ in range(20):
        try:
            with urllib.request.urlopen(url, timeout=5) as answered:
                return answered.status, json.load(answered)
        except urllib.error.HTTPError as refusal:
            status, answer = refusal.code, json.load(refusal)
        time.sleep(0.25)
    return status, answer


@pytest.mark.needs("bwrap")
def test_the_pod(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Its variables, command, probes and stop; only addresses and folders change."""
    cert, key = certificates.write(tmp_path)
    keygen = ["token", "keygen", "--append-to", "issuer.json", "--public", "keys.json"]
    admin = ["token", "admin", "--role", "read", "--name", "prometheus", "--append-to", "admin-tokens"]
    for words in (keygen, admin):
        subprocess.run([PROGRAMS / "presence", *words], cwd=tmp_path, check=True, capture_output=True)
    folders = {"/run/secrets/presence-tls/tls.crt": str(cert), "/run/secrets/presence-tls/tls.key": str(key)}
    variables = {name: folders.get(text, text) for name, text in pod_variables().items()}
    variables = {
        name: text.replace("/run/secrets/presence", str(tmp_path)) for name, text in variables.items()
    }
    variables |= {"PRESENCE_REDIS": redis_server.url, "PRESENCE_PORT": "0", "PRESENCE_ADMIN": "127.0.0.1:0"}
    variables["PRESENCE_MAX_CONNECTIONS"] = str(
        min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2)
    )
    assert POD["enableServiceLinks"] is False
    with contained(tmp_path, variables) as server:
        for name in ("readinessProbe", "livenessProbe"):
            path = CONTAINER[name]["httpGet"]["path"]
            status, answer = probed(server.url.rstrip("/") + path)
            assert (status, answer["status"] in {"ready", "ok"}) == (200, True)
            held(f"pod: {name}")
        assert asked(server.url, tmp_path) == 0
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(30) == 0
        took_s = time.monotonic() - began
        pause_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert took_s + pause_s < POD["terminationGracePeriodSeconds"]
        held("pod: SIGTERM, status 0", after_s=round(took_s, 1))
