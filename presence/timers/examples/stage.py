"""The environment of the examples: a Redis of their own, and worker processes."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from presence.store.client import Redis, open_client
from presence.store.embedded import embedded_redis
from presence.timers.kinds import TimerLocation

WAIT_S: Final = 30.0  # far more than any of them takes
NAME: Final = "example"
FOLDER: Final = "EXAMPLE_FOLDER"  # environment variable: directory of an example's files


@cache
def redis() -> Redis:
    """Return this process' client of the Redis at `PRESENCE_REDIS`, for data of handlers."""
    return open_client(os.environ["PRESENCE_REDIS"])


def folder() -> Path:
    """Return the directory of the example's files."""
    return Path(os.environ[FOLDER])


@contextlib.contextmanager
def stage() -> Iterator[str]:
    """Run an empty Redis and lend a directory, both set in the environment; yield the URL."""
    with tempfile.TemporaryDirectory(prefix="presence-") as lent, embedded_redis() as server:
        os.environ.update({"PRESENCE_REDIS": server.url, FOLDER: lent})
        try:
            yield server.url
        finally:
            redis().close()
            redis.cache_clear()
            del os.environ["PRESENCE_REDIS"], os.environ[FOLDER]


def work(location: TimerLocation, handler: str, holds: Callable[[], bool], *flags: str) -> None:
    """Run `presence timers run` until `holds()`; then it must drain cleanly."""
    ring = ("--slots", str(location.slots), "--tick", str(location.tick_s))
    named = ("--kind", location.kind, "--name", location.name, "--handler", handler, "--processes", "2")
    command = ("timers", "run", "--log-level", "warning", *named, *ring, *flags)
    running = subprocess.Popen([sys.executable, "-m", "presence", *command])  # noqa: S603 - our own command
    deadline = time.monotonic() + WAIT_S
    try:
        while not holds():
            if running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the condition did not hold in time")
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        if status := running.wait(WAIT_S):
            raise RuntimeError(f"the workers ended with {status}")
    finally:
        running.kill()  # its workers notice, and drain
        running.wait()
