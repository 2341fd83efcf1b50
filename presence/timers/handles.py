"""What `TimerService` gives out: a handle a timer, and the door through which other threads come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from presence.timers.inbox import Inbox
from presence.timers.interface import DELAY_S_MAX, TimerError
from presence.timers.rings import Entry

IN_INBOX: Final = -1


class TimerHandle(Entry):
    """A timer that was scheduled; names it to `cancel` and `reschedule` of the service that returned it.

    It has no constructor that takes its values: to fill it in place is what makes scheduling cheap.

    Attributes:
        deadline: when it is to fire, by trio's clock.
        fn, args: the callback; None and () once it fires or was cancelled, so that nothing is kept alive.
    """

    __slots__ = ("args", "deadline", "fn")

    deadline: float
    fn: Callable[..., object] | None
    args: tuple[Any, ...]

    @property
    def waiting(self) -> bool:
        """Whether it has neither begun to fire nor been cancelled."""
        return self.fn is not None


class FromThreads:
    """The verbs of a `TimerService` for threads other than that of its event loop.

    What they ask waits in an inbox of `INBOX_MAX` orders; however many come at once, the loop wakes once. A
    delay counts from the call, not from the moment at which the loop reads it.

    Args:
        inbox: what the service reads.
        now: the service's clock; any thread may read it.
        cancel: the service's own verb.
        room: how many timers more the service can take; any thread may read it.
        token: the event loop.
    """

    def __init__(
        self,
        inbox: Inbox[TimerHandle],
        now: Callable[[], float],
        cancel: Callable[[TimerHandle], bool],
        room: Callable[[], int],
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._inbox = inbox
        self._now = now
        self._cancel = cancel
        self._room = room
        self._token = token

    def schedule(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        """Call `fn(*args)` in the event loop after `delay_s` seconds; as `TimerService.schedule`; never wait.

        Raises:
            TimerFull: the service or the inbox is full; nothing was scheduled. The bound of the service is
                rough here, by the few hundred timers that the loop may be taking at this moment.
            TimerError: the delay is out of bounds, or the service is closed.
        """
        check_delay(delay_s)
        handle = TimerHandle()
        handle.slot, handle.tick = None, IN_INBOX
        handle.fn, handle.args = fn, args
        handle.deadline = self._now() + delay_s
        self._inbox.put(handle, self._room())
        return handle

    def cancel(self, handle: TimerHandle) -> bool:
        """Cancel a timer and wait until the loop has done it; return whether it will not fire any more.

        Raises:
            TimerError: the event loop has ended.
        """
        try:
            return trio.from_thread.run_sync(self._cancel, handle, trio_token=self._token)
        except trio.RunFinishedError:
            raise TimerError("the event loop of the timer service has ended") from None

    def cancel_soon(self, handle: TimerHandle) -> None:
        """Cancel a timer without waiting: it may still fire until the loop reads the inbox.

        Raises:
            TimerFull: the inbox is full; nothing was cancelled.
            TimerError: the service is closed.
        """
        self._inbox.put(handle)


def check_delay(delay_s: float) -> None:
    """Refuse a delay that no timer can have.

    Raises:
        TimerError: it is negative, no number, or more than `DELAY_S_MAX`.
    """
    if not 0.0 <= delay_s <= DELAY_S_MAX:
        raise TimerError(f"a delay of {delay_s} s is not between 0 and {DELAY_S_MAX:.0f} s")
