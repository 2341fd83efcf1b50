"""What a server does while no thread can be started, as at a limit of processes: it goes on, and recovers.

Each cell takes threads away from a running deployment, does one thing, gives them back, and asks for
everything. Idle threads end immediately, so that none is left to be used again.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from loadtest.servers import LocalRedis, PresenceServer
from presence import protocol
from presence.protocol import Kind, Packet
from tests.support.line import Line
from tests.support.waiting import wait_for

SCARCE_S: Final = 2.0  # each worker has its periods of accepting in it
RECOVERY_S: Final = 15.0
WORKERS: Final = 2
SITE: Final = """
import os, threading
import trio._core._thread_cache as cache
cache.IDLE_TIMEOUT = 0.02
_start = threading.Thread.start
def start(self):
    if os.path.exists({flag!r}):
        raise RuntimeError("can't start new thread")
    _start(self)
threading.Thread.start = start
"""


class Deployment:
    """Workers behind one port, whose threads a test can take away."""

    def __init__(self, folder: Path, redis: LocalRedis, server: PresenceServer) -> None:
        self.flag = folder / "no-threads"
        self.redis = redis
        self.server = server
        self.numbers = itertools.count()

    def log_in(self) -> Line:
        line = Line(self.server.address, protocol.login(f"user-{next(self.numbers)}"))
        assert line.answer.kind == Kind.OK
        return line

    def ask(self, packet: Packet) -> bool:
        """Return whether a request of a new user is granted."""
        with contextlib.closing(self.log_in()) as line, contextlib.suppress(TimeoutError):
            return line.ask(packet).kind == Kind.OK
        return False

    def is_well(self) -> bool:
        """Whether everything is granted, on several workers."""
        wanted = [protocol.watch(["ann"]), protocol.query(["ann"])]
        return all(self.ask(packet) for packet in wanted * 2)

    def accept(self) -> None:
        for _ in range(20):
            self.log_in().close()

    def watch(self) -> None:
        self.ask(protocol.watch([f"watched-{next(self.numbers)}"]))

    def query(self) -> None:
        self.ask(protocol.query(["ann"]))

    def message(self) -> None:
        self.ask(protocol.message("user-0", "hello"))

    def reconnect(self) -> None:
        for kind in ("normal", "pubsub"):
            self.redis.client.client_kill_filter(_type=kind)
        time.sleep(SCARCE_S)
        self.log_in().close()

    def reload(self) -> None:
        self.server.process.send_signal(signal.SIGHUP)

    def rotation(self) -> None:
        time.sleep(SCARCE_S)


CELLS: Final[dict[str, Callable[[Deployment], None]]] = {
    "accept and login": Deployment.accept,
    "watch": Deployment.watch,
    "query": Deployment.query,
    "message": Deployment.message,
    "rotation": Deployment.rotation,
    "reload": Deployment.reload,
    "reconnect": Deployment.reconnect,
}


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    (tmp_path / "sitecustomize.py").write_text(SITE.format(flag=str(tmp_path / "no-threads")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with LocalRedis() as redis:
        flags = ("--redis", redis.url, "--workers", str(WORKERS), "--uid-login-rate", "1000")
        with PresenceServer(*flags) as server:
            yield Deployment(tmp_path, redis, server)


def test_a_lack_of_threads_ends_no_process(deployment: Deployment) -> None:
    server, began = deployment.server, time.monotonic()
    workers = server.workers()
    assert len(workers) == WORKERS
    assert deployment.is_well()
    held = 0
    for name, act in CELLS.items():
        deployment.flag.touch()
        act(deployment)
        time.sleep(0.5)
        deployment.flag.unlink()
        wait_for(deployment.is_well, RECOVERY_S)
        assert server.workers() == workers, name
        held += 1
        print(f"{name:18} held")
    assert not server.logged("server failed")
    deployment.flag.touch()
    with contextlib.closing(deployment.log_in()) as line:
        assert server.stop() == 0
        assert line.read(0.1).kind == Kind.GOODBYE
    print(f"{'drain':18} held\n{held + 1} cells, {held + 1} held, {time.monotonic() - began:.0f} s")


def test_a_start_without_threads_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE.format(flag=str(tmp_path / "no-threads")))
    (tmp_path / "no-threads").touch()
    with LocalRedis() as redis:
        ended = subprocess.run(
            [sys.executable, "-m", "presence", "serve", "--port", "0", "--no-admin", "--redis", redis.url],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            check=False,
            text=True,
            timeout=30,
        )
    assert ended.returncode == 1
    assert "can't start new thread" in ended.stderr
    assert "Traceback" not in ended.stderr
