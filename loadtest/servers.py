"""`presence serve` and Redis in processes of their own, as all load tests and tests start them."""

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from presence.store.embedded import find_binary
from presence.store.keys import Keys
from presence.store.redis_client import open_client

START_TIMEOUT_S = 40.0
REDIS_START_TIMEOUT_S = 8.0
STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02
REDIS_POLL_INTERVAL_S = 0.005
SWEEP_S = 2.0  # promised for the sweep of 2,000 users
PRESENCE = ("-m", "presence")
FAILURES = ("Traceback", "Fatal Python error", "Redis refused")  # events that begin with these
BINARY = "TESTS_REDIS_BINARY"  # environment variable: path of the Redis to test with; unset: the embedded one
PORTS = range(8_000, 12_000)  # below the ephemeral range: no connection takes one before a server does


def read_entry(line: str) -> dict[str, Any]:
    """Return the entry of a line of a log; an error that says the line if it is cut off, or foreign."""
    try:
        entry = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        entry = {}
    return entry if {"event", "level"} <= entry.keys() else {"event": line.strip(), "level": "error"}


@dataclass(frozen=True)
class Setup:
    """The servers' settings that the promises are made of, in seconds, and the number of shards."""

    idle_timeout: float = 30.0
    lease: float = 10.0
    tick: float = 1.0
    grace: float = 5.0
    shards: int = 1

    @property
    def node_down_s(self) -> float:
        """The longest time from a node's death until its users are offline, sweep included."""
        return self.lease + self.idle_timeout + self.tick + SWEEP_S

    @property
    def flags(self) -> tuple[str, ...]:
        names = {"--idle-timeout": self.idle_timeout, "--lease": self.lease, "--tick": self.tick}
        names |= {"--disconnect-grace": self.grace, "--shards": self.shards}
        return tuple(word for name, value in names.items() for word in (name, f"{value:g}"))

    def keys(self, prefix: str = "presence") -> Keys:
        return Keys(prefix, self.shards)


class PresenceServer:
    """A running server; a ``with`` block stops it.

    Args:
        flags: of `presence serve`. Unless they ask for the admin process there is none: it takes a second of
            CPU, and a port.
        port: of the clients; 0 picks one.
        program: Python's arguments that run `presence`.
        python: which Python.
        before: called in its process before the command runs.
        forward_errors: whether its log lines of errors also go to standard error.

    Attributes:
        process: the process.
        address: of the clients' port.
        lines: its log so far, an object per line.

    Raises:
        RuntimeError: it did not start.
    """

    admin_flags: tuple[str, ...] = ("--no-admin",)

    def __init__(
        self,
        *flags: str,
        port: int = 0,
        program: Sequence[str] = PRESENCE,
        python: str = sys.executable,
        before: Callable[[], None] | None = None,
        forward_errors: bool = False,
    ) -> None:
        operators = () if {"--admin", "--no-admin"} & set(flags) else self.admin_flags
        serve = [python, *program, "serve", "--port", str(port), "--log-format", "json"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PRESENCE_")}
        self.process = self._start([*serve, *operators, *flags], environment, before)
        self.lines: list[dict[str, Any]] = []
        self._flags = flags
        self._forwards_errors = forward_errors
        self._ready: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            ready = self._ready.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            ready = ""
        except BaseException:  # an interrupt: no ``with`` block has begun that would stop it
            self.stop()
            raise
        if not ready:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not become ready: {self.lines[-5:]}")
        host, _, listens_on = ready.removeprefix("ready ").rpartition(":")
        self.address = (host, int(listens_on))

    def _start(
        self, command: list[str], environment: dict[str, str], before: Callable[[], None] | None
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",  # a reader that ends would stop the server as soon as the pipe is full
            env=environment,
            preexec_fn=before,  # noqa: PLW1509 - it takes no lock
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if line.startswith("ready "):
                    self._ready.put(line.strip())
                    continue
                entry = read_entry(line)
                self.lines.append(entry)
                if self._forwards_errors and entry["level"] == "error":
                    sys.stderr.write(line)
        self._ready.put("")

    @property
    def host(self) -> str:
        """The address of the clients' port, as text."""
        return "{}:{}".format(*self.address)

    @property
    def redis_url(self) -> str:
        """The URL of its Redis: the given one, or that of the embedded one."""
        flags = self._flags
        if "--redis" in flags:
            return flags[flags.index("--redis") + 1]
        return str(self.logged("embedded Redis started")[-1]["url"])

    @property
    def report(self) -> dict[str, Any]:
        """The statistics that it logged when it stopped."""
        return self.logged("stopped")[-1]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event."""
        return [line for line in self.lines if line.get("event") == event]

    def workers(self) -> dict[int, int]:
        """Return the newest process of each worker by its number."""
        return {line["worker"]: line["pid"] for line in self.logged("worker started")}

    def failures(self) -> list[str]:
        """Return the exceptions that it logged: none is expected in any test."""
        return [
            str(line.get("exception") or f"{line['event']}: {line.get('error', '')}")[-500:]
            for line in self.lines
            if "exception" in line or line["event"].startswith(FAILURES)
        ]

    def pause(self, seconds: float) -> None:
        """Stop the process, and continue it after some seconds."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop it gracefully; return its exit status."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        return status


# A replica that has lost its primary refuses to answer, so clients that read there look for the new primary.
SERVE_NO_STALE_DATA: Final = ("--replica-serve-stale-data", "no")


class LocalRedis:
    """A Redis or Valkey on a Unix socket, which can be killed and restarted at the same address.

    Args:
        binary: by default `redis_binary()`.
        folder: for socket and data; by default a temporary one.
        keep: whether every write survives a kill (append-only file).
        extra: further arguments.

    Attributes:
        path: of the socket.
        client: a connection to it.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(
        self,
        binary: str | None = None,
        folder: Path | None = None,
        *,
        keep: bool = False,
        extra: Sequence[str] = (),
    ) -> None:
        self._owns_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="redis-"))
        self.path = str(self.folder / "redis.sock")
        self._log = self.folder / "server.log"
        self._command = [
            binary or redis_binary(),
            *("--port", "0", "--unixsocket", self.path, "--dir", str(self.folder), "--save", ""),
            *("--appendonly", "yes" if keep else "no", "--appendfsync", "always"),
            *("--repl-diskless-sync-delay", "0"),
            *extra,
        ]
        self.url = f"unix://{self.path}"
        self.client: Any = open_client(self.url)  # redis-py types its answers for all decodings together
        try:
            self.start()
        except BaseException:
            self._remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it, and wait until it has loaded its data and answers.

        The client's connections to the previous process are closed.
        """
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._await_start()
        except BaseException:
            self.kill()
            raise
        self.client.connection_pool.disconnect()

    def _await_start(self) -> None:
        give_up = time.monotonic() + REDIS_START_TIMEOUT_S
        while not self.is_answering():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"Redis did not start: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(REDIS_POLL_INTERVAL_S)

    def is_answering(self, within_s: float = 1.0) -> bool:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(within_s)
            probe.connect(self.path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """Stop the process: it answers nothing, and its connections stay."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def error_count(self, name: str) -> int:
        return error_count(self.client, name)

    def close(self) -> None:
        """Kill it, and remove its folder unless that was given."""
        self.kill()
        self._remove()

    def _remove(self) -> None:
        self.client.close()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def redis_binary() -> str:
    """Return the path of the Redis that tests and load tests start."""
    return os.environ.get(BINARY) or find_binary()


def error_count(client: Any, name: str) -> int:
    """Return how many calls a Redis has refused with an error of that name since its start."""
    return int(client.info("errorstats").get(f"errorstat_{name}", {"count": 0})["count"])


def free_port() -> int:
    """Return a port without a listener.

    It does not depend on the seed of `random`, which all processes of a test run share.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (Linux)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_for(condition: Callable[[], bool], seconds: float, *, poll_s: float = POLL_INTERVAL_S) -> bool:
    """Poll until a condition holds; return whether it does in time."""
    give_up = time.monotonic() + seconds
    while not (is_so := condition()) and time.monotonic() < give_up:
        time.sleep(poll_s)
    return is_so
