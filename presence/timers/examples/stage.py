"""What the examples need to be seen: a Redis of their own, and worker processes."""

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

from presence.embedded import embedded_redis
from presence.store.client import Redis, open_client
from presence.timers.kinds import Place

WAIT_S: Final = 30.0  # far more than any of them takes
NAME: Final = "example"
FOLDER: Final = "EXAMPLE_FOLDER"  # the variable that says where an example keeps its files


@cache
def redis() -> Redis:
    """Return this process' client of the Redis that `PRESENCE_REDIS` names, for what a handler stores."""
    return open_client(os.environ["PRESENCE_REDIS"])


@contextlib.contextmanager
def stage() -> Iterator[str]:
    """Run an empty Redis and lend a folder, as this process' environment says from then on; yield the URL."""
    with tempfile.TemporaryDirectory(prefix="presence-") as folder, embedded_redis() as server:
        os.environ.update({"PRESENCE_REDIS": server.url, FOLDER: folder})
        try:
            yield server.url
        finally:
            redis().close()
            redis.cache_clear()
            del os.environ["PRESENCE_REDIS"], os.environ[FOLDER]


@contextlib.contextmanager
def workers(place: Place, handler: str, *flags: str) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run `presence timers run` for the length of a ``with`` block; it must drain well.

    Yields:
        A function that waits until something holds.
    """
    ring = ("--slots", str(place.slots), "--tick", str(place.tick_s))
    running = subprocess.Popen(  # noqa: S603 - our own command
        [
            *(sys.executable, "-m", "presence", "timers", "run", "--log-level", "warning"),
            *("--kind", place.kind, "--name", place.name, *ring),
            *("--handler", handler, "--processes", "2", *flags),
        ]
    )

    def wait_until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("what was waited for did not come")
            time.sleep(0.01)

    try:
        yield wait_until
        running.send_signal(signal.SIGTERM)
        if status := running.wait(WAIT_S):
            raise RuntimeError(f"the workers ended with {status}")
    finally:
        running.kill()  # its workers notice, and drain
        running.wait()


def folder() -> Path:
    """Return where the example keeps its files."""
    return Path(os.environ[FOLDER])
