"""Load generators: processes with a loop of clients each, which take orders.

Tests: `tests/system/benchmarks/test_scale.py`.
"""

import contextlib
import gc
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from presence.loadtest.client_loop import ClientLoop, LoopThread
from presence.loadtest.server_address import raise_file_limit, source_addresses

CONNECTIONS_PER_SOURCE = 4000  # address, of one generator
ORDER_TIMEOUT_S = 60.0  # a generator's thread never waits for long; one that was stopped never answers
END_TIMEOUT_S = 20.0


def _serve(pipe: Connection, make_loop: Callable[..., ClientLoop], arguments: Sequence[Any]) -> None:
    """Run the clients and the orders, until the pipe ends: the process of a generator."""
    raise_file_limit()
    generator = make_loop(*arguments)
    gc.disable()  # nothing here makes cycles, and a collection would make keepalives late
    with LoopThread(generator) as thread, contextlib.suppress(EOFError):
        while True:
            name, given = pipe.recv()
            pipe.send(thread.call(lambda: getattr(generator, name)(**given)))  # noqa: B023 - done by now


def shares_of(clients: int, processes: int) -> list[range]:
    """Return the numbers of the clients that each process has."""
    bounds = [clients * number // processes for number in range(processes + 1)]
    return [*map(range, bounds, bounds[1:])]


def sources_of(host: str, shares: Sequence[int]) -> list[list[str | None]]:
    """Return the addresses that each process connects from, given their numbers of connections."""
    each = source_addresses(host, sum(math.ceil(share / CONNECTIONS_PER_SOURCE) for share in shares))
    return [[*itertools.islice(each, math.ceil(share / CONNECTIONS_PER_SOURCE))] for share in shares]


class LoopProcesses:
    """The processes, from the side that gives orders: names of methods of their loops.

    Args:
        make_loop: called in each process with its arguments; returns its loop.
        arguments: an item for each process.

    Attributes:
        size: the number of processes.
    """

    def __init__(self, make_loop: Callable[..., ClientLoop], arguments: Sequence[Sequence[Any]]) -> None:
        self.size = len(arguments)
        # All are forked from one process that has loaded the modules, and share the memory of that.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([make_loop.__module__])
        self._processes, self._pipes = [], []
        for each in arguments:
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, make_loop, each), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(pipe)

    def call_all(self, order: str, **arguments: Any) -> list[Any]:
        """Run an order in all processes; return their answers.

        Raises:
            SystemExit: one of them has ended or does not answer.
        """
        for number in range(self.size):
            self._send(number, order, arguments)
        give_up_at = time.monotonic() + ORDER_TIMEOUT_S
        return [self._answer(number, order, give_up_at) for number in range(self.size)]

    def _send(self, number: int, order: str, arguments: Mapping[str, Any]) -> None:
        try:
            self._pipes[number].send((order, arguments))
        except OSError:
            raise SystemExit(self._gone(number, "ended", order)) from None

    def _answer(self, number: int, order: str, give_up_at: float) -> Any:
        try:
            if not self._pipes[number].poll(max(0.0, give_up_at - time.monotonic())):
                raise SystemExit(self._gone(number, "does not answer", order))
            return self._pipes[number].recv()
        except (EOFError, OSError):
            raise SystemExit(self._gone(number, "ended", order)) from None

    def _gone(self, number: int, what: str, order: str) -> str:
        process = self._processes[number]
        return (
            f"load generator {number + 1} of {self.size} (pid {process.pid}) {what} at the order {order}: "
            "its clients cannot be judged"
        )

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        give_up_at = time.monotonic() + END_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, give_up_at - time.monotonic()))
            process.kill()
