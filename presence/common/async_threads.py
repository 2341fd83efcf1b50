"""Calls in threads, on asyncio and trio; for servers, which are on trio, see `presence.common.runtime`."""

import errno
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from presence.common.threads import NoThread, need_memory_to_start

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T], *, abandon_on_cancel: bool = True) -> T:
    """Return what a function returns in a thread, on asyncio and trio.

    Args:
        function: what to call.
        abandon_on_cancel: whether a cancelled wait leaves the thread behind; otherwise it waits for it.

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
        return await anyio.to_thread.run_sync(begin, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as error:
        if has_begun:
            raise
        raise NoThread(errno.EAGAIN, str(error)) from error
