"""Waiting until something is so: by real time in threads and processes, or by the clock of a trio test."""

import time
from collections.abc import Callable
from typing import TypeVar

import trio

from presence.common.runtime import Caller, Linger, TrioRuntime

WAIT_TIMEOUT_S = 20.0  # a machine under load
POLL_INTERVAL_S = 0.01

Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], seconds: float = WAIT_TIMEOUT_S) -> Found:
    """Poll until there is a true value; return it."""
    give_up = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(POLL_INTERVAL_S)
    return seen


async def until(
    holds: Callable[[], object], seconds: float = WAIT_TIMEOUT_S, *, look_s: float = POLL_INTERVAL_S
) -> None:
    """Poll, while other tasks run, until a condition holds."""
    with trio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110 - what rings no bell: Redis, threads, other processes
            await trio.sleep(look_s)


class InlineCallsRuntime(TrioRuntime):
    """Calls are made between two steps of the loop, so that mock time waits for no thread."""

    def loop_caller(self) -> Caller:  # type: ignore[override]  # as in `Runtime`
        return self

    async def call(self, blocking: Callable[[], Found], linger: Linger | None = None) -> Found:
        await trio.lowlevel.checkpoint()
        answer = blocking()
        if linger is not None:
            await linger()
        return answer
