"""Calls that may hang, as reading a file does whose disk is gone: in a thread, and not waited for for ever.

Nothing ends a thread that hangs. It is left to itself: whoever waits for it may be cancelled at any moment,
the process may end, and no second one is started beside it.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import trio

PATIENCE_S: Final = 10.0  # a key file takes some milliseconds, a hundred keys of RS256 a second

Found = TypeVar("Found")


class Hanging(Exception):
    """There is no answer: the call takes too long, or the one before it still does."""


class Aside:
    """Where blocking calls are made, one at a time; for one caller at a time."""

    def __init__(self) -> None:
        self._thread = trio.CapacityLimiter(1)  # which an abandoned thread keeps until it ends

    async def call(self, function: Callable[[], Found]) -> Found:
        """Return what a function returns, or raise what it raises.

        Raises:
            Hanging: it is abandoned after `PATIENCE_S`, or not called, for the one before still hangs.
        """
        if self._thread.borrowed_tokens:
            raise Hanging("takes too long, and hangs still")
        with trio.move_on_after(PATIENCE_S):
            return await trio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._thread)
        raise Hanging("takes too long, and hangs still")
