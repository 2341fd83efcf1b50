"""Load that is made in processes of its own, so that it and whoever measures do not wait for each other."""

import gc
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from loadtest.connection import raise_file_limit


def _begin() -> None:
    raise_file_limit()
    gc.disable()  # nothing here makes cycles, and a collection would make load late


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Have so many processes ready, for the length of a ``with`` block."""
    context = multiprocessing.get_context("spawn")  # a fork would share sockets, and threads' locks
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin) as pool:
        for started in [pool.submit(raise_file_limit) for _ in range(count)]:
            started.result()
        yield pool
