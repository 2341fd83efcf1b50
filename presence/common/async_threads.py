"""Calls in threads, on asyncio and trio; for servers, which are on trio, see `presence.common.runtime`.

Tests: `tests/admin/test_views.py`, `tests/cli/test_kick.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio.to_thread

from presence.common.threads import call_once_started

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T], *, abandon_on_cancel: bool = True) -> T:
    """Return what a function returns in a thread, on asyncio and trio.

    Args:
        function: what to call.
        abandon_on_cancel: whether a cancelled wait leaves the thread behind; otherwise it waits for it.

    Raises:
        NoThread: the function was not called.
    """
    run_sync = partial(anyio.to_thread.run_sync, abandon_on_cancel=abandon_on_cancel)
    return await call_once_started(function, run_sync)
