"""A real `presence serve` in a process of its own, as its users run it."""

import contextlib
from collections.abc import Iterator, Sequence

from loadtest.servers import PRESENCE
from loadtest.servers import PresenceServer as ServerProcess

__all__ = ["ServerProcess", "running_server"]


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
