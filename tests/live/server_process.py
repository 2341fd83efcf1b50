"""A real `presence serve` in a process of its own, as its users run it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from loadtest.servers import PRESENCE
from loadtest.servers import PresenceServer as ServerProcess

__all__ = ["ServerProcess", "pids", "running_server", "wait_for"]


@contextlib.contextmanager
def running_server(*flags: str, program: Sequence[str] = PRESENCE) -> Iterator[ServerProcess]:
    """Run a server for the length of a ``with`` block; it must end with status 0."""
    server = ServerProcess(*flags, program=program)
    try:
        yield server
    except BaseException:
        server.stop()
        raise
    assert server.stop() == 0, server.lines[-5:]


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def pids(server: ServerProcess) -> dict[int, int]:
    """The newest process of each worker."""
    return server.workers()
