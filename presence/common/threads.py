"""Threads that the system may refuse to start, at a limit of processes or of memory.

Tests: `tests/common/test_runtime.py`, `tests/common/test_faults.py`.
"""

import errno
import mmap
import threading
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

BEGINNING_BYTES: Final = 4 << 20  # what a thread may allocate until it runs: an arena of Python's is 1 MiB


class NoThread(OSError):
    """The system starts no further thread.

    Python raises a `RuntimeError`, which callers that survive a lack of descriptors or memory do not expect.
    """


def need_memory_to_start() -> None:
    """Raise `NoThread` if there is no memory for the beginning of a thread.

    Python waits for a new thread until it runs, and for ever if the thread dies before that.
    """
    try:
        mmap.mmap(-1, BEGINNING_BYTES).close()  # no page of it is touched
    except OSError as error:
        raise NoThread(errno.ENOMEM, "no memory to start a thread") from error


def start(thread: threading.Thread) -> None:
    """Start a thread; raises `NoThread`."""
    need_memory_to_start()
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(errno.EAGAIN, str(error)) from error


async def call_once_started(
    function: Callable[[], T], run_sync: Callable[[Callable[[], T]], Awaitable[T]]
) -> T:
    """Return what a function returns in a thread.

    Args:
        function: what to call.
        run_sync: calls in a thread, as that of the event loop's library.

    Raises:
        NoThread: the function was not called.
    """
    has_begun = False

    def begin() -> T:
        nonlocal has_begun
        has_begun = True
        return function()

    need_memory_to_start()
    try:
        return await run_sync(begin)
    except RuntimeError as error:
        if has_begun:
            raise
        raise NoThread(errno.EAGAIN, str(error)) from error
