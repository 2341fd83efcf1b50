"""Waiting for processes."""

import time
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 0.01


def wait(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until something is so.

    Args:
        condition: whether it is.
        seconds: how long to wait at most.
        what: it is, in words.

    Raises:
        TimeoutError: it did not come about in time.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"Redis Cluster: not within {seconds:g} s: {what}")
        time.sleep(LOOK_S)
