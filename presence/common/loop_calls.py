"""Blocking code on the event loop, without a thread.

A hand-off to a thread and back costs more processor time than the call itself, and two threads delay each
other by the interpreter's lock. So a call runs in a greenlet of the loop's thread: where it would block, it
passes what it waits for to the task that made the call, and other tasks run meanwhile. Code that knows
nothing of this, such as redis-py, needs only sockets that do so (`presence/store/loop_socket.py`).

This half belongs to the call, and knows no event loop; `presence.common.runtime.LoopCaller` is the other.

Tests: `tests/store/test_loop_socket.py`, `tests/server/test_control_listener.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from socket import socket
from typing import Any, Final, TypeVar, cast

from greenlet import getcurrent, greenlet

MAX_ITEMS_PER_TURN: Final = 100  # decoded without a turn for other tasks: a millisecond or two,
MAX_BYTES_PER_TURN: Final = 262_144  # as are so many of records

T = TypeVar("T")


class LoopCall(greenlet):  # type: ignore[misc]  # it has no types
    """A blocking function that runs on the loop; a switch to it returns a request or its result."""


class Waker:
    """Ends the wait of a call, or its next one if it does not wait now; for the loop's thread only."""

    __slots__ = ("_end", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._end: Callable[[], object] | None = None  # of the present wait

    def wake(self) -> None:
        """End the wait."""
        self._is_set = True
        if self._end is not None:
            self._end()

    def begin(self, end: Callable[[], object]) -> None:
        """Note a wait that `end` ends."""
        self._end = end
        if self._is_set:
            end()

    def finish(self) -> None:
        """Note the end of the wait, whatever ended it."""
        self._end, self._is_set = None, False


@dataclass(frozen=True, slots=True)
class Wait:
    """Asks to wait until a socket is readable, or else writable; the answer is whether it is so in time."""

    sock: socket
    is_read: bool
    timeout_s: float
    waker: Waker | None = None  # may end the wait earlier


@dataclass(frozen=True, slots=True)
class InThread:
    """Asks to run a function in a thread; the answer is what it returns or raises."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """Asks to let other tasks run."""


def is_on_loop() -> bool:
    """Whether the running function was called on the loop."""
    return isinstance(getcurrent(), LoopCall)


def ask_loop(request: Wait | InThread | Turn) -> Any:
    """Let the task that made the call do something; return or raise the result. Needs `is_on_loop`."""
    return cast(LoopCall, getcurrent()).parent.switch(request)


def let_others_run() -> None:
    """Let other tasks run, if the function was called on the loop; for calls that compute for long."""
    if is_on_loop():
        ask_loop(Turn())


class Pacer:
    """Lets other tasks run from time to time while a call decodes much."""

    def __init__(self) -> None:
        self._items = self._bytes = 0  # since the last turn

    def note(self, size_bytes: int = 0) -> None:
        """Note that one more item was decoded."""
        self._items += 1
        self._bytes += size_bytes
        if self._items >= MAX_ITEMS_PER_TURN or self._bytes >= MAX_BYTES_PER_TURN:
            self.rested()
            let_others_run()

    def rested(self) -> None:
        """Note that other tasks could run."""
        self._items = self._bytes = 0
