"""A real `presence serve` in a process of its own, forked from one that has loaded the program."""

import contextlib
from collections.abc import Iterator, Sequence

from loadtest.servers import PRESENCE, PresenceServer
from tests.support.preloaded import PreloadedServer


@contextlib.contextmanager
def running_server(*flags: str, program: Sequence[str] = PRESENCE) -> Iterator[PresenceServer]:
    """Run a server for the length of a ``with`` block; it must end with status 0."""
    with PreloadedServer(*flags, program=program) as server:
        yield server
        assert server.stop() == 0, server.lines[-5:]
