"""The server as PID 1 of a container: numbered user, read-only files, credentials and settings of Compose."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import psutil
import pytest

from presence import protocol
from presence.protocol import Code, Kind
from presence.store.embedded import EmbeddedRedis, find_binary
from presence.store.redis_client import open_client
from tests.admin.processes import children, command
from tests.deploy.container_files import (
    COMPOSE,
    FOLDER,
    SERVERS,
    compose_variables,
    health_check,
    instructions,
    script,
)
from tests.deploy.units import DEPLOY
from tests.support.phone import Phone
from tests.support.waiting import wait_for

PROGRAMS = Path(sys.executable).parent
VALIDATOR = PROGRAMS / "kubernetes-validate"


@dataclass
class Contained:
    """A server in namespaces of its own; `pid` is that of its PID 1 here."""

    process: "subprocess.Popen[str]"
    pid: int
    address: tuple[str, int]
    url: str


@contextlib.contextmanager
def contained(folder: Path, variables: dict[str, str]) -> Iterator[Contained]:
    """Run ``presence serve`` as the Containerfile does, in a folder instead of its working directory."""
    user, _, group = instructions("USER")[0].partition(":")
    process = subprocess.Popen(
        [
            *("bwrap", "--unshare-user", "--uid", user, "--gid", group, "--cap-drop", "ALL"),
            *("--unshare-pid", "--as-pid-1", "--die-with-parent", "--ro-bind", "/", "/"),
            *("--proc", "/proc", "--dev", "/dev", "--chdir", str(folder)),
            *(str(PROGRAMS / "presence"), *json.loads(instructions("CMD")[-1])),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **variables},
    )
    assert process.stderr is not None
    log = process.stderr
    ready: SimpleQueue[tuple[str, str]] = SimpleQueue()

    def read() -> None:
        found: dict[str, str] = {}
        for line in log:
            sys.stderr.write(line)
            if line.startswith("ready "):
                ready.put((found["url"], line.rpartition(":")[2]))
            elif "url" in (entry := json.loads(line)):
                found["url"] = entry["url"]
        ready.put(("", ""))

    reader = Thread(target=read, daemon=True)
    reader.start()
    try:
        url, port = ready.get(timeout=40)
        assert port, "it did not start"
        (pid,) = children(process.pid)
        yield Contained(process, pid, ("127.0.0.1", int(port)), url)
    finally:
        process.kill()  # and with it everything in its namespace
        process.wait()
        reader.join()
        log.close()


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """A folder with what the service of this name creates."""
    folder, issuer = tmp_path / "presence", tmp_path / "issuer"
    folder.mkdir()
    issuer.mkdir()
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    text = script("credentials").replace("/var/lib/issuer", str(issuer))
    command = [*COMPOSE["services"]["credentials"]["entrypoint"], text]
    for _ in range(2):  # the second time it leaves everything as it is
        subprocess.run(command, cwd=folder, env=environment, check=True)
    assert {each.name for each in folder.iterdir()} == {"keys.json", "admin-tokens", "prometheus-token"}
    return folder


def asked(url: str, folder: Path) -> int:
    """Return the status of the image's health check, asked of another port."""
    *start, text = health_check()
    port = url.rstrip("/").rpartition(":")[2]
    text = text.replace("7480", port)
    return subprocess.run(
        [sys.executable, *start[1:], text], cwd=folder, check=False, capture_output=True
    ).returncode


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.nightly)])
def test_it_serves_and_drains_as_pid_1_of_a_container(
    redis_server: EmbeddedRedis, credentials: Path, workers: str
) -> None:
    variables = compose_variables(SERVERS[0]) | {
        **{"PRESENCE_REDIS": redis_server.url, "PRESENCE_PORT": "0", "PRESENCE_ADMIN": "127.0.0.1:0"},
        **{"PRESENCE_PROXY_FROM": "192.0.2.1", "PRESENCE_WORKERS": workers},
    }
    sign = [str(PROGRAMS / "presence"), "token", "sign", "--keys", "issuer.json", "--uid", "ann"]
    issuer = credentials.parent / "issuer"
    token = subprocess.run(sign, cwd=issuer, capture_output=True, text=True, check=True).stdout.strip()
    with contained(credentials, variables) as server:
        status = dict(
            line.split(":\t") for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
        )
        assert status["NSpid"].split()[-1] == "1"
        assert (status["CapEff"], status["NoNewPrivs"]) == ("0" * 16, "1")
        assert asked(server.url, credentials) == 0
        if workers == "2":
            number_of = {pid: n for n, pid in enumerate(children(server.pid))}
            killed = next(pid for pid in number_of if command(pid)[-1:] != ["presence.admin"])
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: len(set(children(server.pid)) - {killed}) == len(number_of))
        phone = Phone(server.address)
        assert phone.ask(protocol.login(None, token=token, id=1)).kind == Kind.OK
        family = psutil.Process(server.pid).children(recursive=True)
        assert all(each.status() != psutil.STATUS_ZOMBIE for each in family)
        os.kill(server.pid, signal.SIGTERM)
        assert phone.next().payload["code"] == Code.SERVER_DRAIN
        phone.close()
        assert server.process.wait(30) == 0
        assert asked(server.url, credentials) != 0


def test_valkey_takes_the_shared_file_with_the_changes(tmp_path: Path) -> None:
    service = COMPOSE["services"]["valkey"]
    _, file, *changes = service["command"]
    (source,) = (each.split(":")[0] for each in service["volumes"] if each.split(":")[1] == file)
    changes[changes.index("/data")] = str(tmp_path)
    path = tmp_path / "socket"
    command = [find_binary(), FOLDER / source, *changes, "--port", "0", "--unixsocket", path]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(path.exists)
            with contextlib.closing(open_client(f"unix://{path}")) as client:
                assert client.config_get("appendonly", "maxmemory") == {
                    "appendonly": "yes",
                    "maxmemory": str(512 << 20),
                }
        finally:
            server.terminate()


@pytest.mark.needs("haproxy")
def test_haproxy_takes_the_shared_file_with_the_changes(tmp_path: Path) -> None:
    text = re.sub(r"^exec haproxy .*$", "", script("haproxy"), flags=re.MULTILINE)
    text = text.replace("/tmp", str(tmp_path)).replace("/etc/haproxy", str(DEPLOY / "haproxy"))
    subprocess.run(["sh", "-euc", text], check=True)
    changed = (tmp_path / "haproxy.cfg").read_text()
    places = re.findall(r"^ +server \S+ (\S+) source 10\.74\.0\.2$", changed, re.MULTILINE)
    assert places == ["10.74.0.11:7400", "10.74.0.12:7400"]
    # The user is made by the image.
    (tmp_path / "haproxy.cfg").write_text(re.sub(r"^ +(user|group) .*$", "", changed, flags=re.MULTILINE))
    run = subprocess.run(
        ["haproxy", "-c", "-f", tmp_path / "haproxy.cfg"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, "WARNING" in run.stderr) == (0, False), run.stderr


@pytest.mark.needs("promtool")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    for name in ("container/prometheus.yml", "prometheus/alerts.yml"):
        (tmp_path / Path(name).name).write_text((DEPLOY / name).read_text())
    command = ["promtool", "check", "config", "--syntax-only", str(tmp_path / "prometheus.yml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.needs(str(VALIDATOR))
def test_the_manifests_match_the_schemas_of_kubernetes() -> None:
    run = subprocess.run(
        [str(VALIDATOR), "--strict", "--kubernetes-version", "1.30", str(FOLDER / "kubernetes.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
