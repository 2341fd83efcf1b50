"""A server without threads, descriptors, memory or room on a disk: it goes on, and recovers.

Each cell takes one of them from all processes of a deployment, does one thing, gives it back, and asks for
everything. No process ends that could go on; one that cannot says why in one line, and is replaced. Each user
whose login was granted has one online event, and one offline event once the connection is closed.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pytest

from loadtest.servers import LocalRedis, PresenceServer
from presence import protocol
from presence.protocol import Kind, Packet
from presence.store.redis_client import open_client
from tests.support.events import assert_alternation, of_type, read_events
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.scarcities import FullDisk, NoDescriptors, NoMemory, NoProcesses, NoThreads, Scarcity
from tests.support.waiting import wait_for

SCARCE_S: Final = 1.0  # each worker has its periods of accepting in it
ANSWER_S: Final = 0.3  # a client waits while nothing can be accepted
RECOVERY_S: Final = 25.0  # a worker that ended is swept after lease + T
LOGINS: Final = 6  # that are tried while something lacks
FLAGS: Final = (
    *("--uid-login-rate", "1000", "--address-login-rate", "10000", "--disconnect-grace", "0.5"),
    *("--idle-timeout", "4", "--lease", "2", "--max-idle-timeout", "300", "--drain-timeout", "5"),
)
ROOMLESS: Final = "4k"  # one page
FILELESS: Final = f"{ROOMLESS},nr_inodes=1"  # not even an empty file


class Lack(NamedTuple):
    """What a deployment of so many workers lacks."""

    workers: int
    kind: str
    amount: int = 0  # that is left: descriptors, MB

    def __str__(self) -> str:
        return f"{self.workers} worker(s), {self.kind} {self.amount}"


LACKS: Final = [
    Lack(workers, kind, amount)
    for workers in (1, 2)
    for kind, amounts in {
        "threads": (0,),
        "processes": (0,),
        "descriptors": (0, 1, 3),
        "memory": (0, 1, 8),
        "disk of data": (0,),
        "disk of the log": (0,),
        "disk of the runtime directory": (0,),
    }.items()
    for amount in amounts
]
IN_SMALL: Final = {
    Lack(1, "disk of data"): ["accept and login"],
    Lack(2, "descriptors", 1): ["accept and login", "reload"],
}
"""What the full tier tries, and with which acts; the drain is always the last."""


@dataclass
class Deployment:
    """Workers behind one port, from which a test can take something away."""

    lack: Lack
    scarcity: Scarcity
    start: Callable[[int], PresenceServer]  # on a port
    numbers: Iterator[int] = field(default_factory=itertools.count)
    granted: set[str] = field(default_factory=set)  # uids whose login was granted
    server: PresenceServer = field(init=False)
    held: Line = field(init=False)  # is there all the time

    def __post_init__(self) -> None:
        self.server = self.start(0)
        self.hold()

    def hold(self) -> None:
        """Log a user in who stays."""
        self.held = Line(self.server.address, protocol.login("held", idle_timeout=300))
        assert self.held.answer.kind == Kind.OK
        self.granted.add("held")

    @property
    def pid(self) -> int:
        return self.server.process.pid

    @property
    def redis_url(self) -> str:
        url = self.server.redis_url
        if self.lack.kind == "disk of the runtime directory":
            return url.replace("unix://", f"unix:///proc/{self.pid}/root", 1)
        return url

    def is_held(self) -> bool:
        """Whether the connection that is there all the time is answered."""
        with contextlib.suppress(OSError):
            return self.held.ask(protocol.query(["ann"])).kind == Kind.OK
        return False

    def log_in(self, timeout_s: float = 5.0) -> Line | None:
        """Log a new user in; None: it was refused, or there was no answer in time."""
        uid = f"user-{next(self.numbers)}"
        with contextlib.suppress(OSError):
            line = Line(self.server.address, protocol.login(uid), timeout_s=timeout_s)
            if line.answer.kind == Kind.OK:
                self.granted.add(uid)
                return line
            line.close()
        return None

    def ask(self, packet: Packet, timeout_s: float = 5.0) -> bool:
        """Return whether a request of a new user is granted."""
        if line := self.log_in(timeout_s):
            with contextlib.closing(line), contextlib.suppress(OSError):
                return line.ask(packet).kind == Kind.OK
        return False

    def is_well(self) -> bool:
        """Whether everything is granted, on several workers."""
        wanted = [protocol.watch(["ann"]), protocol.query(["ann"])]
        return all(self.ask(packet) for packet in wanted * 2)

    def is_written(self) -> bool:
        """Whether each user whose login was granted is online, or offline once the connection is closed."""
        events = read_events(self.redis_url)
        assert_alternation(events)
        assert not of_type(events, "gap")
        online, offline = of_type(events, "online"), of_type(events, "offline")
        return online.keys() >= self.granted and offline.keys() >= self.granted - {"held"}

    def logins(self) -> None:
        lines = [self.log_in(ANSWER_S) for _ in range(LOGINS)]
        for line in filter(None, lines):
            line.close()

    def watch(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(LOGINS):
                self.held.ask(protocol.watch([f"watched-{next(self.numbers)}" for _ in range(50)]))

    def query(self) -> None:
        self.ask(protocol.query(["ann"]), ANSWER_S)

    def message(self) -> None:
        self.ask(protocol.message("held", "hello"), ANSWER_S)

    def reconnect(self) -> None:
        client: Any = open_client(self.redis_url)
        with contextlib.closing(client):
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)
        time.sleep(SCARCE_S)
        self.logins()

    def reload(self) -> None:
        self.server.process.send_signal(signal.SIGHUP)

    def rolling(self) -> None:
        before = len(self.server.logged("rolling restart started"))
        self.server.process.send_signal(signal.SIGUSR2)
        if self.lack.kind != "disk of the log":
            wait_for(lambda: len(self.server.logged("rolling restart started")) > before)
        time.sleep(SCARCE_S)

    def rotation(self) -> None:
        time.sleep(SCARCE_S)


ACTS: Final[dict[str, Callable[[Deployment], None]]] = {
    "accept and login": Deployment.logins,
    "watch": Deployment.watch,
    "query": Deployment.query,
    "message": Deployment.message,
    "rotation": Deployment.rotation,
    "reload": Deployment.reload,
    "reconnect": Deployment.reconnect,
}


@contextlib.contextmanager
def deployed(lack: Lack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """Run a deployment that can lack this; skip the test if that cannot be arranged here."""
    (folder / "settings.toml").write_text("tick = 1.0\n")
    flags = [*FLAGS, "--workers", str(lack.workers), "--config", str(folder / "settings.toml")]
    options: dict[str, Any] = {}
    scarcity: Scarcity
    with contextlib.ExitStack() as cleanup:
        if lack.kind.startswith("disk"):
            place = Path(cleanup.enter_context(TemporaryDirectory()))  # short enough for the path of a socket
            scarcity = disk = full_disk(place, has_log=lack.kind == "disk of the log")
            options = {"python": disk.python, "program": disk.program}
            kept = disk.folder if lack.kind == "disk of data" else folder
            flags += ["--data-dir", str(kept / "data")]
            if lack.kind == "disk of the runtime directory":
                monkeypatch.setenv("RUNTIME_DIRECTORY", str(disk.folder))
        else:
            flags += ["--redis", cleanup.enter_context(LocalRedis()).url]
            scarcity = threads = NoThreads(folder)
            monkeypatch.setenv("PYTHONPATH", str(folder))
            if lack.kind == "processes":
                try:
                    scarcity = group = NoProcesses()
                except OSError as error:
                    pytest.skip(f"no control group of its own: {error}")
                cleanup.callback(group.close)
                options = {"before": group.enter}
            elif lack.kind == "descriptors":
                scarcity = NoDescriptors(lack.amount)
            elif lack.kind == "memory":
                scarcity = NoMemory(lack.amount)
            else:
                assert scarcity is threads

        def start(port: int) -> PresenceServer:
            return cleanup.enter_context(PreloadedServer(*flags, port=port, **options))

        deployment = Deployment(lack, scarcity, start)
        yield deployment
        deployment.held.close()


def full_disk(folder: Path, **options: Any) -> FullDisk:
    try:
        return FullDisk(folder, **options)
    except OSError as error:
        pytest.skip(f"no mounts of its own: {error}")


def ends(deployment: Deployment, exits: int) -> str:
    """Return how processes ended, if memory was lacking and they said so; start the server if it is gone.

    Args:
        exits: the number of workers that had ended before.
    """
    server = deployment.server
    gone = server.process.poll() is not None
    if not gone and len(server.logged("worker exited, restarting")) == exits:
        return ""
    assert deployment.lack.kind == "memory", "a process ended that could go on"
    assert any("memory" in line["error"] for line in server.logged("server failed"))
    deployment.granted &= of_type(read_events(deployment.redis_url), "online").keys()
    if gone:
        assert server.process.returncode == 1
        deployment.server = deployment.start(server.address[1])
    return ", ended with the reason and was replaced"


def try_acts(deployment: Deployment, acts: dict[str, Callable[[Deployment], None]]) -> None:
    """Do each act while something lacks, print a line each; the last is the drain."""
    lack, began, is_replaced = deployment.lack, time.monotonic(), ""
    wait_for(deployment.is_well)
    wait_for(deployment.is_written)
    for name, act in acts.items():
        workers = deployment.server.workers()
        exits = len(deployment.server.logged("worker exited, restarting"))
        deployment.scarcity.begin(deployment.pid)
        try:
            act(deployment)
            time.sleep(SCARCE_S / 2)
        finally:
            deployment.scarcity.end(deployment.pid)
        is_replaced = ends(deployment, exits)
        if not is_replaced and name != "rolling restart":
            assert deployment.server.workers() == workers
            assert deployment.is_held() or lack.kind == "memory"  # then its connection may have failed
        wait_for(deployment.is_well, RECOVERY_S)
        if not deployment.is_held():
            deployment.held.close()
            deployment.hold()
        wait_for(deployment.is_written, RECOVERY_S)
        assert deployment.server.failures() == []
        print(f"{lack}: {name} held{is_replaced}", flush=True)
    deployment.scarcity.begin(deployment.pid)
    status = deployment.server.stop()
    if lack.kind != "memory" or status == 0:
        assert status == 0
        with contextlib.suppress(ConnectionError):
            deployment.held.gather(0.1)
        assert Kind.GOODBYE in [each.kind for each in deployment.held.pushed]
    assert deployment.server.failures() == []
    print(f"{lack}: drain held, status {status}")
    print(f"{len(acts) + 1} cells, {len(acts) + 1} held, {time.monotonic() - began:.0f} s", flush=True)


def acts_of(lack: Lack) -> dict[str, Callable[[Deployment], None]]:
    return ACTS if lack.workers == 1 else {**ACTS, "rolling restart": Deployment.rolling}


@pytest.mark.parametrize("lack", IN_SMALL, ids=str)
def test_a_server_that_lacks_something_goes_on(
    lack: Lack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployed(lack, tmp_path, monkeypatch) as deployment:
        try_acts(deployment, {name: ACTS[name] for name in IN_SMALL[lack]})


@pytest.mark.nightly
@pytest.mark.parametrize("lack", LACKS, ids=str)
def test_everything_that_a_server_does_goes_on_when_it_lacks_something(
    lack: Lack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deployed(lack, tmp_path, monkeypatch) as deployment:
        try_acts(deployment, acts_of(lack))


def started_in_vain(command: list[str], **env: str) -> str:
    """Run a server that cannot start; return what it says."""
    ended = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, check=False, text=True, timeout=30
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_start_without_threads_ends_with_the_reason(tmp_path: Path) -> None:
    NoThreads(tmp_path).begin(0)
    with LocalRedis() as redis:
        command = ["-m", "presence", "serve", "--port", "0", "--no-admin", "--redis", redis.url]
        assert "can't start new thread" in started_in_vain(
            [sys.executable, *command], PYTHONPATH=str(tmp_path)
        )


@pytest.mark.parametrize("what", ["data", "runtime directory"])
def test_a_start_on_a_full_disk_ends_with_the_reason(tmp_path: Path, what: str) -> None:
    disk = full_disk(tmp_path / "disk", room=ROOMLESS if what == "data" else FILELESS)
    flags = ["serve", "--port", "0", "--no-admin"]
    if what == "data":
        command = [disk.python, *disk.program, *flags, "--data-dir", str(disk.folder / "data")]
        said = started_in_vain(command)
    else:
        said = started_in_vain([disk.python, *disk.program, *flags], RUNTIME_DIRECTORY=str(disk.folder))
    assert "No space left on device" in said
