"""Nodes, each a server in a process of its own, with a proxy before it and one between it and Redis."""

import os
import signal
import time
from collections.abc import Sequence

from loadtest.chaos.crowd import Address
from loadtest.proxy import Proxy
from loadtest.servers import PresenceServer, free_port, is_stopped

CLUSTER = "+cluster://"
START_RETRY_S = 0.2
PASSING = ("Redis", "redis", "in use")  # of what a start may fail with
EXPECTED_ERRORS = ("Redis refused",)  # what a Redis that is out of memory says


class Node:
    """One server, which is started again at the same address.

    Args:
        redis: the socket of Redis, to which a path leads; or the address of a cluster, without one.
        flags: of `presence serve`.
        program: see `PresenceServer`.

    Attributes:
        path: between it and Redis; None for a cluster.
        clients: between it and a part of its clients.
    """

    def __init__(self, redis: str, flags: Sequence[str], program: Sequence[str]) -> None:
        self._flags, self._program = flags, program
        self._failures: list[str] = []
        self.path = None if CLUSTER in redis else Proxy(redis)
        self._redis_url = self.path.url if self.path else redis
        self._server = self._start(free_port())
        self.clients = Proxy(self._server.address)

    def addresses(self, place: int) -> list[Address]:
        """Return where clients can log in."""
        return [Address(self._server.address, place, False), Address(self.clients.address, place, True)]

    @property
    def pid(self) -> int:
        """The process."""
        return self._server.process.pid

    def _start(self, port: int) -> PresenceServer:
        flags = ("--redis", self._redis_url, *self._flags)
        while True:
            try:
                return PresenceServer(*flags, port=port, program=self._program)
            except RuntimeError as error:  # Redis could not be reached for the whole of its patience
                if not any(word in str(error) for word in PASSING):
                    raise
                time.sleep(START_RETRY_S)

    def start_again(self) -> None:
        """Start it at the address that it had; return when it serves."""
        self._failures = self.failures()
        self._server = self._start(self._server.address[1])

    def kill(self) -> int:
        """End it at once; return the status that it left with."""
        self._server.process.kill()
        return self._server.process.wait()

    def drain(self) -> int:
        """End it as an operator does; return the status that it left with."""
        return self._server.stop()

    def freeze(self) -> None:
        """Stop the process."""
        os.kill(self.pid, signal.SIGSTOP)

    def is_frozen(self) -> bool:
        """Whether it is stopped."""
        return is_stopped(self.pid)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def failures(self) -> list[str]:
        """Return what all of its processes logged of exceptions."""
        found = (each for each in self._server.failures() if not each.startswith(EXPECTED_ERRORS))
        return [*self._failures, *found]

    def close(self) -> None:
        """End all."""
        self.clients.close()
        self._server.stop()
        if self.path:
            self.path.close()
