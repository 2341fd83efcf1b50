"""A presence server of the example's own, with an embedded Redis."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class LocalServer(NamedTuple):
    """Where it is."""

    host: str
    port: int
    redis_url: str


_ended: list[str] = []  # processes that have ended before their time


@contextlib.contextmanager
def local_server(*flags: str) -> Iterator[LocalServer]:
    """Run ``presence serve`` on a free port for the length of a ``with`` block, which SIGTERM ends, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(len(_ended)))
    command = [sys.executable, "-m", "presence", "serve", "--port", "0", "--no-admin", "--log-format", "json"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    with needed(process, "the presence server"):
        assert process.stderr is not None
        redis_url = ""
        for line in process.stderr:
            if line.startswith("ready "):
                host, _, port = line.split()[1].rpartition(":")
                break
            if (entry := print_error(line))["event"] == "embedded Redis started":
                redis_url = entry["url"]
        else:
            raise SystemExit("the presence server did not start")
        threading.Thread(target=print_errors, args=(process.stderr,), daemon=True).start()
        yield LocalServer(host, int(port), redis_url)


@contextlib.contextmanager
def needed(process: "subprocess.Popen[Any]", name: str) -> Iterator[None]:
    """End a process with the ``with`` block; if it ends before, end the program with exit status 1."""
    is_over = threading.Event()

    def watch() -> None:
        process.wait()
        if not is_over.is_set():
            print(f"{name} has ended", file=sys.stderr, flush=True)
            _ended.append(name)
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        process.terminate()
        thread.join()


def print_errors(log: Iterable[str]) -> None:
    """Read the log on: a server stands still as soon as the pipe is full."""
    for line in log:
        print_error(line)


def print_error(line: str) -> dict[str, Any]:
    """Print a line of the log if it is an error; return its entry."""
    try:
        entry: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    except ValueError:  # a line that was cut off
        entry = {}
    entry = {"event": line.strip(), "level": "error"} | entry
    if entry["level"] == "error":
        print(line, end="", file=sys.stderr)
    return entry
