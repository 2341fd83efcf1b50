"""The servers that are measured: how each is started, what it speaks, and how one knows that it serves."""

import contextlib
import getpass
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.load_generator import ANSWERED, UNANSWERED
from loadtest.servers import free_port

HOST = "127.0.0.1"
OWN = "presence"  # the server that all the others are compared with
READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
FLOOR_SOURCE = Path(__file__).with_name("floor.c")
BOTH = (UNANSWERED, ANSWERED)


@dataclass(frozen=True)
class Contender:
    """A server that can be measured."""

    name: str  # in tables, and on the command line
    says: str  # what it is, in a few words
    dialect: str  # the name of what it speaks
    kinds: tuple[str, ...]  # the kinds of keepalive that it knows
    # Returns the command, given a folder of its own and a free port
    command: Callable[[Path, int], list[str]]
    needs: str = ""  # a program that must be on PATH, or ""
    probed: bool = False  # whether round trips are measured, too

    def missing(self) -> str:
        """Return why it cannot be measured here, or ""."""
        return f"{self.needs} is not on PATH" if self.needs and shutil.which(self.needs) is None else ""


def _mosquitto(folder: Path, port: int) -> list[str]:
    settings = f"listener {port} {HOST}\nallow_anonymous true\nuser {getpass.getuser()}\nlog_type error\n"
    (folder / "mosquitto.conf").write_text(settings)
    return ["mosquitto", "-c", str(folder / "mosquitto.conf")]


def _nats(folder: Path, port: int) -> list[str]:
    # The clients send keepalives, so the server need not ask whether they live.
    (folder / "nats.conf").write_text(f'listen: "{HOST}:{port}"\nping_interval: "1h"\n')
    return ["nats-server", "-c", str(folder / "nats.conf")]


def _python(name: str, says: str, *words: str, probed: bool = False) -> Contender:
    command = [sys.executable, "-m", *words]
    return Contender(name, says, "presence", BOTH, lambda _folder, _port: command, probed=probed)


def floor(maxevents: int) -> Contender:
    """Return the C floor, which is built when it is started."""

    def command(folder: Path, _port: int) -> list[str]:
        program = folder / "floor"
        subprocess.run(["gcc", "-O2", "-o", str(program), str(FLOOR_SOURCE)], check=True)
        return [str(program), str(maxevents)]

    says = f"C, gcc -O2: epoll_wait (up to {maxevents} events), recv, nothing else"
    return Contender("floor", says, "presence", BOTH, command, needs="gcc")


SERVE = ("presence", "serve", "--no-admin", "--port", "0", "--log-format", "json")


def installed(name: str, python: str) -> Contender:
    """Return the server that another Python has installed, not the one in this folder."""
    return Contender(name, f"{python} -m presence", "presence", BOTH, lambda *_: [python, "-P", "-m", *SERVE])


def with_workers(contender: Contender, workers: int) -> Contender:
    """Return a presence server with so many workers."""
    command, flags = contender.command, ["--workers", str(workers)]
    name, says = f"{contender.name}-{workers}", f"{contender.says}, {workers} workers"
    return replace(contender, name=name, says=says, command=lambda *given: [*command(*given), *flags])


def contenders(maxevents: int) -> dict[str, Contender]:
    """Return all servers by name, in the order of the tables."""
    peers = "benchmarks.loop_servers"
    once = (ANSWERED,)
    every = [
        _python(OWN, "this server", *SERVE, probed=True),
        floor(maxevents),
        _python("uvloop", "asyncio Protocol on uvloop", peers, "uvloop", probed=True),
        _python("asyncio", "asyncio Protocol, its own loop", peers, "asyncio"),
        _python("trio", "trio, a task a connection", peers, "trio"),
        Contender("mosquitto", "MQTT broker in C; PINGREQ", "mqtt", once, _mosquitto, "mosquitto"),
        Contender("nats", "NATS broker in Go; PING", "nats", once, _nats, "nats-server"),
    ]
    return {each.name: each for each in every}


@dataclass(frozen=True)
class Running:
    """A server that accepts connections: its process id and address."""

    pid: int
    host: str
    port: int


@contextlib.contextmanager
def running(contender: Contender) -> Iterator[Running]:
    """Run a server for the length of a ``with`` block.

    Raises:
        SystemExit: it did not start; the message ends with its output.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        # Those that speak our protocol pick a port and print ``ready HOST:PORT``; others are given one.
        port = 0 if contender.dialect == "presence" else free_port()
        command = contender.command(folder, port)
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            yield Running(process.pid, HOST, _wait(process, contender.name, log, port))
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", name: str, log: Path, port: int) -> int:
    """Return the port once the server is ready."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if port:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1.0):
                return port
        else:
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith("ready "):
                    return int(line.rpartition(":")[2])
        time.sleep(0.05)
    raise SystemExit(f"{name} did not become ready:\n{log.read_text(errors='replace')[-2000:]}")
