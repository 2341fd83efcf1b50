"""The techniques that keep everything in one process, and whose event loop finds out who is silent."""

import math
import time
from collections.abc import Sequence

import trio

from loadtest.compare.technique import Found
from presence.timers.handles import TimerHandle
from presence.timers.service import TimerService


class Service:
    """`TimerService`: a timer for each user, which a touch reschedules.

    Args:
        timeout_s: T.
        timers: the service.
    """

    def __init__(self, timeout_s: float, timers: TimerService) -> None:
        self._timeout_s = timeout_s
        self._timers = timers
        self._handles: dict[str, TimerHandle] = {}
        self._found: list[Found] = []

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        handle = self._handles.get(uid)
        if handle is None or not self._timers.reschedule(handle, self._timeout_s):
            self._handles[uid] = self._timers.schedule(self._timeout_s, self._silent, uid)

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        for uid in uids:
            self.touch(uid, now)

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        if handle := self._handles.pop(uid, None):
            self._timers.cancel(handle)

    def due(self, now: float) -> Sequence[Found]:
        """See `Technique`."""
        found, self._found = self._found, []
        return found

    def next_look(self, now: float) -> float:
        """The service looks by itself; what it has found can be had at once."""
        return now if self._found else math.inf

    def _silent(self, uid: str) -> None:
        del self._handles[uid]
        self._found.append(Found(uid, time.monotonic()))


class TrioDeadlines:
    """A task for each user, which sleeps in a cancel scope; a touch moves the scope's deadline.

    Args:
        timeout_s: T.
        nursery: where the tasks run.
    """

    def __init__(self, timeout_s: float, nursery: trio.Nursery) -> None:
        self._timeout_s = timeout_s
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._found: list[Found] = []

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        deadline = trio.current_time() + self._timeout_s
        scope = self._scopes.get(uid)
        if scope is None or scope.cancel_called:  # its time is up, and its task has not run yet
            scope = self._scopes[uid] = trio.CancelScope(deadline=deadline)
            self._nursery.start_soon(self._wait, uid, scope)
        else:
            scope.deadline = deadline

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        for uid in uids:
            self.touch(uid, now)

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        if scope := self._scopes.pop(uid, None):
            scope.cancel()

    def due(self, now: float) -> Sequence[Found]:
        """See `Technique`."""
        found, self._found = self._found, []
        return found

    def next_look(self, now: float) -> float:
        """Trio looks by itself; what it has found can be had at once."""
        return now if self._found else math.inf

    async def _wait(self, uid: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        if self._scopes.get(uid) is scope:
            del self._scopes[uid]
            self._found.append(Found(uid, time.monotonic()))
