"""The techniques: each finds users who were silent for T, and all stand behind one interface."""

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Final, NamedTuple

import trio

from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.ticks import SLOTS_PER_TICK, Ticks
from presence.timers.delay_queue import DelayQueue
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.handing import Leasing, SharedTimer
from presence.timers.interface import Event
from presence.timers.redis_wheel import RedisWheel
from presence.timers.ring_timer import RingTimer
from presence.timers.service import TimerHandle, TimerService, open_timer_service
from presence.wheel import TimingWheel

NAMES: Final = {
    "wheel": "presence wheel",
    "service": "`TimerService`",
    "heap": "heapq, lazy deletion",
    "rearmed": "heapq, re-armed late",
    "trio": "trio deadlines",
    "redis-wheel": "`RedisWheel`",
    "ring": "`RingTimer`",
    "queue": "`DelayQueue`",
    "expiry": "`ExpiryTimer`",
}
IN_REDIS: Final = ("redis-wheel", "ring", "queue", "expiry")
BATCHED: Final = ("wheel", *IN_REDIS)  # those whose API takes many touches at once
NOTHING: Final = "nothing"  # does nothing: what the player itself costs

TICKS_PER_TIMEOUT: Final = 30  # a tick of 1 s for T of 30 s, as the server has
SLICE: Final = 256  # as many as the server takes between two checkpoints
LOOKS_PER_TICK: Final = 4
LOOKS_PER_TIMEOUT: Final = 300  # each 0.1 s of 30: for those in Redis that know no ticks
LEASES_PER_TIMEOUT: Final = 6
TAKEN_PER_CALL: Final = 500


class Found(NamedTuple):
    """A user who was silent for T, and the monotonic time at which it was noticed."""

    uid: str
    at: float


class Technique(ABC):
    """Idle detection. Time is monotonic seconds, as an argument; what keeps its own clock ignores it.

    This one does nothing with touches that come together: it takes them one by one.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @abstractmethod
    def touch(self, uid: str, now: float) -> None:
        """The user has sent something: online, for T from now on."""

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """The same for many at once, in the way that the technique has for that."""
        for uid in uids:
            self.touch(uid, now)

    @abstractmethod
    def due(self, now: float) -> Iterable[Found]:
        """Tell who has been silent for T since the last touch; each once. To be gone through to its end."""

    @abstractmethod
    def next_look(self, now: float) -> float:
        """Return when `due` wants to be called next."""


class _Nothing(Technique):
    """Does nothing, so that what the player costs is known."""

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""

    def due(self, now: float) -> Sequence[Found]:
        return ()

    def next_look(self, now: float) -> float:
        return math.inf


class _Wheel(Technique):
    """The presence wheel, driven as the server's ticker drives it."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._ticks = Ticks(timeout_s / TICKS_PER_TIMEOUT / SLOTS_PER_TICK, time.monotonic())
        self._wheel: TimingWheel[str] = TimingWheel(2 * TICKS_PER_TIMEOUT * SLOTS_PER_TICK)

    def touch(self, uid: str, now: float) -> None:
        self._wheel.touch(uid, self._ticks.at_or_after(now + self._timeout_s))

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        self._wheel.touch_all(uids, self._ticks.at_or_after(now + self._timeout_s))

    def due(self, now: float) -> Iterator[Found]:
        tick = self._ticks.begun(now)
        while uids := self._wheel.expire(tick, SLICE):
            at = time.monotonic()
            yield from (Found(uid, at) for uid in uids)

    def next_look(self, now: float) -> float:
        return self._ticks.starts(self._wheel.cursor + 1)


class _Heap(Technique):
    """A heap of (deadline, uid): each touch adds an entry, and one that is no longer true is skipped."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._deadlines: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def touch(self, uid: str, now: float) -> None:
        deadline = now + self._timeout_s
        self._deadlines[uid] = deadline
        heapq.heappush(self._heap, (deadline, uid))

    def due(self, now: float) -> Iterator[Found]:
        heap = self._heap
        while heap and heap[0][0] <= now:
            deadline, uid = heapq.heappop(heap)
            if self._deadlines.get(uid) == deadline:
                del self._deadlines[uid]
                yield Found(uid, time.monotonic())

    def next_look(self, now: float) -> float:
        """When the first entry is due that is still true."""
        heap = self._heap
        while heap and self._deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf


class _RearmedHeap(Technique):
    """A heap with one entry a user: a touch notes the time, and the entry is put right when it comes up."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._touched: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def touch(self, uid: str, now: float) -> None:
        if uid not in self._touched:
            heapq.heappush(self._heap, (now + self._timeout_s, uid))
        self._touched[uid] = now

    def due(self, now: float) -> Iterator[Found]:
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, uid = heap[0]
            deadline = self._touched[uid] + self._timeout_s
            if deadline > now:
                heapq.heapreplace(heap, (deadline, uid))
                continue
            heapq.heappop(heap)
            del self._touched[uid]
            yield Found(uid, time.monotonic())

    def next_look(self, now: float) -> float:
        return self._heap[0][0] if self._heap else math.inf


class _Told(Technique):
    """One that is told by the event loop who is silent; what it was told can be had at once."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._found: list[Found] = []

    def due(self, now: float) -> Sequence[Found]:
        found, self._found = self._found, []
        return found

    def next_look(self, now: float) -> float:
        return now if self._found else math.inf


class _Service(_Told):
    """`TimerService`: a timer for each user, which a touch reschedules."""

    def __init__(self, timeout_s: float, timers: TimerService) -> None:
        super().__init__(timeout_s)
        self._timers = timers
        self._handles: dict[str, TimerHandle] = {}

    def touch(self, uid: str, now: float) -> None:
        handle = self._handles.get(uid)
        if handle is None or not self._timers.reschedule(handle, self._timeout_s):
            self._handles[uid] = self._timers.schedule(self._timeout_s, self._silent, uid)

    def _silent(self, uid: str) -> None:
        del self._handles[uid]
        self._found.append(Found(uid, time.monotonic()))


class _TrioDeadlines(_Told):
    """A task for each user, which sleeps in a cancel scope; a touch moves the scope's deadline."""

    def __init__(self, timeout_s: float, nursery: trio.Nursery) -> None:
        super().__init__(timeout_s)
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}

    def touch(self, uid: str, now: float) -> None:
        deadline = trio.current_time() + self._timeout_s
        scope = self._scopes.get(uid)
        if scope is None or scope.cancel_called:  # its time is up, and its task has not run yet
            scope = self._scopes[uid] = trio.CancelScope(deadline=deadline)
            self._nursery.start_soon(self._wait, uid, scope)
        else:
            scope.deadline = deadline

    async def _wait(self, uid: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        if self._scopes.get(uid) is scope:
            del self._scopes[uid]
            self._found.append(Found(uid, time.monotonic()))


class _WheelInRedis(Technique):
    """`RedisWheel`: one script a touch; a look some times a tick."""

    def __init__(self, timeout_s: float, wheel: RedisWheel) -> None:
        super().__init__(timeout_s)
        self._wheel = wheel
        self._look_s = timeout_s / TICKS_PER_TIMEOUT / LOOKS_PER_TICK
        self._next_look = 0.0

    def touch(self, uid: str, now: float) -> None:
        self._wheel.touch(uid)

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        self._wheel.touch_many(uids)

    def due(self, now: float) -> Iterator[Found]:
        self._next_look = now + self._look_s
        while silences := self._wheel.due(TAKEN_PER_CALL):
            at = time.monotonic()
            yield from (Found(each.uid, at) for each in silences)
            if len(silences) < TAKEN_PER_CALL:
                break

    def next_look(self, now: float) -> float:
        return self._next_look


class _Rescheduled(Technique):
    """A shared timer whose event, the user's silence, is put off by each touch."""

    def __init__(self, timer: SharedTimer, timeout_s: float, look_s: float) -> None:
        super().__init__(timeout_s)
        self._timer = timer
        self._look_s = look_s
        self._next_look = 0.0

    def touch(self, uid: str, now: float) -> None:
        """One call, and another for a user who comes online."""
        if not self._timer.reschedule(uid, self._timeout_s):
            self._timer.schedule(Event(uid, self._timeout_s))

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """One call, and another if some come online."""
        new = [Event(uid, self._timeout_s) for uid in self._timer.reschedule_many(uids, self._timeout_s)]
        if new:
            self._timer.schedule_many(new)

    def due(self, now: float) -> Iterator[Found]:
        """A user is told of first, and then done."""
        self._next_look = now + self._look_s
        while dues := self._timer.due(TAKEN_PER_CALL):
            at = time.monotonic()
            yield from (Found(each.id, at) for each in dues)
            self._timer.done(dues)

    def next_look(self, now: float) -> float:
        return self._next_look


@asynccontextmanager
async def opened(kind: str, timeout_s: float, url: str) -> AsyncIterator[Technique]:
    """Give a technique, for the length of an ``async with`` block.

    Args:
        kind: a key of `NAMES`, or `NOTHING`.
        timeout_s: T.
        url: of a Redis, for those that need one.

    Raises:
        ValueError: there is no such kind.
    """
    in_process: dict[str, Callable[[float], Technique]] = {
        NOTHING: _Nothing,
        "wheel": _Wheel,
        "heap": _Heap,
        "rearmed": _RearmedHeap,
    }
    tick_s = round(timeout_s / TICKS_PER_TIMEOUT, 3)
    if make := in_process.get(kind):
        yield make(timeout_s)
    elif kind == "service":
        async with open_timer_service() as timers:
            yield _Service(timeout_s, timers)
    elif kind == "trio":
        async with trio.open_nursery() as nursery:
            yield _TrioDeadlines(timeout_s, nursery)
            nursery.cancel_scope.cancel()
    elif kind == "redis-wheel":
        with closing(RedisWheel(url, "compare", idle_timeout_s=timeout_s, tick_s=tick_s)) as wheel:
            yield _WheelInRedis(timeout_s, wheel)
    elif kind in IN_REDIS:
        leasing = Leasing(lease_s=timeout_s / LEASES_PER_TIMEOUT, attempts_max=100)
        base, look_s = Keys().timer("compare"), timeout_s / LOOKS_PER_TIMEOUT
        with closing(Scripting(url)) as scripting:
            if kind == "ring":
                ring = RingTimer(scripting, base, leasing, slots=2 * TICKS_PER_TIMEOUT, tick_s=tick_s)
                yield _Rescheduled(ring, timeout_s, tick_s / LOOKS_PER_TICK)
            elif kind == "queue":
                yield _Rescheduled(DelayQueue(scripting, base, leasing), timeout_s, look_s)
            else:
                with closing(ExpiryTimer(scripting, base, leasing)) as timer:
                    yield _Rescheduled(timer, timeout_s, look_s)
    else:
        raise ValueError(f"no such technique: {kind}")
