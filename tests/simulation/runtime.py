"""`presence.common.runtime.Runtime` in virtual time: a node's tasks, one step at a time.

Whatever a task waits for is a `_Trap`. A blocking call runs in a greenlet, so that each of its round trips
can take its time, and the store's own code stands still meanwhile as a thread would.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from greenlet import greenlet

from presence.common.runtime import Linger
from tests.simulation.machine import Machine

T = TypeVar("T")
Wake = Callable[[Any, BaseException | None], None]


class _Trap:
    """What a task waits for; `begin` is given what wakes it."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Wake], None]) -> None:
        self.begin = begin

    def __await__(self) -> Generator["_Trap", Any, Any]:
        return (yield self)


class Task:
    """A coroutine of a node; it ends with its machine's process."""

    def __init__(self, machine: Machine, coroutine: Coroutine[Any, Any, None]) -> None:
        self._machine = machine
        self._coroutine: Coroutine[Any, Any, None] | None = coroutine
        self._turn = 0
        machine.post(lambda: self._step(None, None))

    def cancel(self) -> None:
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is not None:
            coroutine.close()

    def _step(self, value: Any, error: BaseException | None) -> None:
        if self._coroutine is None:
            return
        try:
            trap = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
        except StopIteration:
            self._coroutine = None
            return
        self._turn += 1
        turn = self._turn

        def wake(value: Any, error: BaseException | None) -> None:
            if self._turn == turn:  # of several that may wake it the first does
                self._turn += 1
                self._step(value, error)

        cast(_Trap, trap).begin(wake)


class VirtualRuntime:
    """A `presence.common.runtime.Runtime` in virtual time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def sleep(self, seconds: float) -> None:
        machine = self._machine
        await _Trap(lambda wake: machine.post_after(max(0.0, seconds), lambda: wake(None, None)))

    def wake_event(self) -> "VirtualWakeEvent":
        return VirtualWakeEvent(self._machine)

    def loop_caller(self) -> "VirtualCaller":
        """Return a caller; nothing is ever cancelled: a process that ends takes its connections with it."""
        return VirtualCaller(self._machine)


class VirtualWakeEvent:
    """A `presence.common.runtime.WakeEvent` in virtual time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_set = False
        self._wake: Wake | None = None

    def set(self) -> None:
        self._is_set = True
        wake, self._wake = self._wake, None
        if wake is not None:
            self._machine.post_after(0.0, lambda: wake(None, None))

    async def wait(self, timeout_s: float) -> bool:
        def begin(wake: Wake) -> None:
            if self._is_set:
                self._machine.post_after(0.0, lambda: wake(None, None))
                return
            self._wake = wake
            if timeout_s < float("inf"):
                self._machine.post_after(max(0.0, timeout_s), lambda: wake(None, None))

        await _Trap(begin)
        self._wake = None
        rung, self._is_set = self._is_set, False
        return rung


class VirtualCaller:
    """A `presence.common.runtime.Caller` in virtual time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def call(self, blocking: Callable[[], T], linger: Linger | None = None) -> T:
        answer = await self._call(blocking)
        if linger is not None:
            await linger()
        return answer

    async def _call(self, blocking: Callable[[], T]) -> T:
        def begin(wake: Wake) -> None:
            thread = greenlet(lambda _: _outcome(blocking))

            def go_on(answer: Any) -> None:
                step = thread.switch(answer)
                if thread.dead:
                    wake(*step)
                else:  # a round trip, which gets the destination of its answer
                    step(lambda answer: self._machine.post(lambda: go_on(answer)))

            go_on(None)

        return cast(T, await _Trap(begin))


def _outcome(blocking: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return blocking(), None
    except Exception as error:  # whatever it is, the task gets it
        return None, error
