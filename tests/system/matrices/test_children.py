"""Each process of a running deployment is killed (-9) and stopped in turn.

Held: it is replaced within the documented time (docs/operations.md, "A process that ends or hangs"), or its
command ends with a status other than 0, its other processes with it, and a service manager restarts it.
Afterwards users log in, their events are written, and `/readyz` answers 200.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest

from loadtest.servers import LocalRedis, PresenceServer, free_port
from presence import protocol
from presence.protocol import Kind
from presence.store.error_classes import CONNECTION_LOST
from tests.admin.processes import admin_of, children, command, is_gone, url_of
from tests.support.events import read_events
from tests.support.managers import Manager
from tests.support.phone import Phone
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import WebhookReceiver

HANG_TIMEOUT_S: Final = 2.0
KILLED_S: Final = 5.0  # documented: until a killed process is replaced
STOPPED_S: Final = HANG_TIMEOUT_S + KILLED_S
START_S: Final = 10.0  # until a successor serves
DRAIN_S: Final = 12.0  # until the processes of a killed supervisor are gone
DAMAGED_S: Final = 10.0 + 10.0 + 5.0  # five starts, and a drain whose outbox cannot be emptied
WATCHDOG_US: Final = 1_500_000
LOCK_S: Final = 15.0 + 5.0 + 5.0  # of a webhooks runner, its renewal, and a request that times out
RETRY_S: Final = 1.0
SIGNALS: Final = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


class Cell(NamedTuple):
    workers: int
    keeps_data: bool
    process: str
    how: str  # a key of `SIGNALS`

    def __str__(self) -> str:
        data = "data kept" if self.keeps_data else "data in memory"
        return f"{self.workers} worker(s), {data}: {self.process} {self.how}"


CELLS: Final = [
    *(Cell(1, True, process, how) for process in ("server", "admin", "redis") for how in SIGNALS),
    *(Cell(2, True, process, how) for process in ("server", "worker", "admin", "redis") for how in SIGNALS),
    *(Cell(workers, False, "redis", how) for workers in (1, 2) for how in SIGNALS),
]
IN_SMALL: Final = {
    Cell(1, False, "redis", "killed"),
    Cell(2, True, "server", "killed"),
    Cell(2, True, "admin", "killed"),
}
RUNNERS: Final = [(runner, how) for runner in ("webhooks", "followups") for how in SIGNALS]


@dataclass
class Deployment:
    """A server with everything that belongs to it, below a service manager that restarts it."""

    cell: Cell
    flags: tuple[str, ...]
    port: int
    server: PresenceServer = field(init=False)
    users: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.server = PreloadedServer(*self.flags, port=self.port)

    def process(self, name: str) -> int:
        if name == "server":
            return self.server.process.pid
        if name == "worker":
            return self.server.workers()[1]
        if name == "admin":
            return admin_of(self.server)
        (found,) = (each for each in children(self.server.process.pid) if is_redis(each))
        return found

    def serves(self) -> None:
        """Log a user in, wait for the event and for the operators' page."""
        self.users += 1
        uid = f"user-{self.users}"

        def is_granted() -> bool:
            with contextlib.suppress(OSError, AssertionError):
                phone = Phone(("127.0.0.1", self.port))
                with contextlib.closing(phone):
                    return phone.ask(protocol.login(uid, id=1)).kind == Kind.OK
            return False

        wait_for(is_granted, START_S)
        wait_for(partial(self._is_written, uid), START_S)
        wait_for(partial(is_ready, url_of(self.server)), START_S)

    def _is_written(self, uid: str) -> bool:
        with contextlib.suppress(*CONNECTION_LOST):
            return any(event["uid"] == uid for event in read_events(self.server.redis_url))
        return False


def is_redis(pid: int) -> bool:
    return any("valkey-server" in word or "redis-server" in word for word in command(pid)[:1])


def is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}readyz", timeout=1.0) as answered:
        return bool(answered.status == 200)
    return False


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with Manager(tmp_path) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.notify_socket)
        monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_US))
        yield manager


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(each, marks=() if each in IN_SMALL else pytest.mark.nightly, id=str(each))
        for each in CELLS
    ],
)
def test_each_process_is_replaced_or_its_command_fails(cell: Cell, manager: Manager, tmp_path: Path) -> None:
    flags = ["--workers", str(cell.workers), "--admin", f"127.0.0.1:{free_port()}"]
    flags += ["--hang-timeout", str(HANG_TIMEOUT_S), "--idle-timeout", "5", "--disconnect-grace", "1"]
    flags += ["--data-dir", str(tmp_path / "data")] if cell.keeps_data else []
    running = Deployment(cell, tuple(flags), free_port())
    try:
        running.serves()
        victim = running.process(cell.process)
        family = {
            victim,
            *(each.pid for each in psutil.Process(running.server.process.pid).children(recursive=True)),
        }
        began = time.monotonic()
        os.kill(victim, SIGNALS[cell.how])
        if cell.process == "server":
            restart(running, cell, manager, family)
        else:
            seconds = KILLED_S if cell.how == "killed" else STOPPED_S
            wait_for(lambda: is_gone(victim), seconds)
            wait_for(partial(replaced, running, cell.process, victim), began + seconds - time.monotonic())
        took_s = time.monotonic() - began
        running.serves()
        print(f"held: {cell}: replaced after {took_s:.1f} s, serves after {time.monotonic() - began:.1f} s")
        assert running.server.stop() == 0
        assert not running.server.failures()
    finally:
        end(running.server.process.pid)
        running.server.stop()


def replaced(running: Deployment, name: str, victim: int) -> bool:
    """Whether there is another process of that name."""
    with contextlib.suppress(ValueError, KeyError):
        return running.process(name) != victim
    return False


def restart(running: Deployment, cell: Cell, manager: Manager, family: set[int]) -> None:
    """Do what a service manager does: kill what sends no pings, wait for the end, start it again."""
    if cell.how == "stopped":
        while not manager.is_silent():
            pass
        time.sleep(WATCHDOG_US / 1_000_000)
        assert manager.is_silent(), "nothing else pings in its place"
        running.server.process.kill()
    assert running.server.process.wait(KILLED_S) != 0
    wait_for(lambda: all(is_gone(each) for each in family), DRAIN_S)
    running.server.stop()
    running.start()


# Commands of which several run: another one takes over


HANDLER = """
import os, sys

def handle(followup):
    with open(os.environ["HANDLED"], "a") as file:
        file.write(followup.uid + "\\n")
"""


def runner_command(kind: str, redis: LocalRedis, receiver: WebhookReceiver, folder: Path) -> list[str]:
    common = ["--redis", redis.url]
    if kind == "webhooks":
        (folder / "secret").write_bytes(receiver.secret)
        (folder / "secret").chmod(0o600)
        flags = [
            "--url",
            receiver.url,
            "--secret-file",
            str(folder / "secret"),
            "--timeout",
            "1",
            "--after",
            "0",
        ]
    else:
        (folder / "handlers_of_the_matrix.py").write_text(HANDLER)
        (folder / "rules.toml").write_text('[[followups]]\nname = "bye"\nafter = 0.1\n')
        flags = ["--config", str(folder / "rules.toml"), "--handler", "handlers_of_the_matrix:handle"]
        flags += ["--retry", str(RETRY_S)]
    return [sys.executable, "-m", "presence", kind, "run", *common, *flags]


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "how"), RUNNERS, ids=" ".join)
def test_another_runner_takes_over(
    kind: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled, receiver = tmp_path / "handled", WebhookReceiver(b"a secret of the test")
    handled.touch()
    monkeypatch.setenv("HANDLED", str(handled))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with LocalRedis() as redis, receiver.running():
        words = runner_command(kind, redis, receiver, tmp_path)
        runners = [subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            with PreloadedServer("--redis", redis.url) as server:
                done: Callable[[], set[str]] = (
                    (lambda: set(receiver.uids))
                    if kind == "webhooks"
                    else (lambda: set(handled.read_text().split()))
                )
                visit(server, "early", done)
                began = time.monotonic()
                victim = runners[0]
                victim.send_signal(SIGNALS[how])
                for number in range(4):
                    visit(server, f"late-{number}", done)
                took_s = time.monotonic() - began
                assert victim.poll() == (-signal.SIGKILL if how == "killed" else None)
                assert runners[1].poll() is None
                print(f"held: 2 runners: {kind} {how}: the other one took over, 4 users after {took_s:.1f} s")
        finally:
            for each in runners:
                each.kill()
                each.wait()


def visit(server: PresenceServer, uid: str, done: Callable[[], set[str]]) -> None:
    """Let a user come and go until what follows is done; the runners may still be starting at first."""

    def is_done() -> bool:
        with contextlib.closing(Phone(server.address)) as phone:
            phone.ask(protocol.login(uid, id=1))
            phone.send(protocol.encode(protocol.logout()))
        until = time.monotonic() + 2.0
        while uid not in done() and time.monotonic() < until:
            time.sleep(0.05)
        return uid in done()

    wait_for(is_done, LOCK_S)


@pytest.mark.nightly
@pytest.mark.parametrize("workers", [1, 2])
def test_a_redis_whose_data_is_damaged_ends_the_command(workers: int, tmp_path: Path) -> None:
    flags = ("--workers", str(workers), "--data-dir", str(tmp_path), "--hang-timeout", str(HANG_TIMEOUT_S))
    with PreloadedServer(*flags) as server, contextlib.closing(Phone(server.address)) as phone:
        assert phone.ask(protocol.login("ann", id=1)).kind == Kind.OK
        (redis,) = (each for each in children(server.process.pid) if is_redis(each))
        for file in tmp_path.glob("appendonlydir/*.manifest"):
            file.write_text("damaged")
        began = time.monotonic()
        end(redis)
        assert phone.next().kind == Kind.GOODBYE
        assert server.process.wait(DAMAGED_S) == 1
        took_s = time.monotonic() - began
        (line,) = server.logged("embedded Redis cannot be restarted")
        assert "manifest" in line["output"]
        print(f"held: {workers} worker(s): redis killed, its data damaged: status 1 after {took_s:.1f} s")
