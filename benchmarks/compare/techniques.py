"""The techniques: each finds users who were silent for T, and all stand behind one interface."""

import heapq
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from presence.core.slots import SLOTS_PER_TICK, SlotClock
from presence.core.wheel import TimingWheel
from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import Event
from presence.timers.kinds import DelayQueue, RingTimer
from presence.timers.redis_wheel import RedisWheel
from presence.timers.service import TimerHandle, TimerService, open_timer_service
from presence.timers.shared_timer import Leasing, SharedTimer

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
BATCHED: Final = ("wheel", *IN_REDIS)  # those whose API takes many touches per call
NOTHING: Final = "nothing"  # does nothing: what the player itself costs

TICKS_PER_TIMEOUT: Final = 30  # a tick of 1 s for T of 30 s, as the server has
SLICE: Final = 256  # as many as the server takes between two checkpoints
POLLS_PER_TICK: Final = 4
POLLS_PER_TIMEOUT: Final = 300  # each 0.1 s of 30: for those in Redis that know no ticks
LEASES_PER_TIMEOUT: Final = 6
TAKEN_PER_CALL: Final = 500


class IdleUser(NamedTuple):
    """A user who was silent for T, and when that was noticed, in monotonic seconds."""

    uid: str
    at: float


@dataclass(slots=True)
class Technique:
    """Idle detection. Time is monotonic seconds, as an argument; own clocks ignore it."""

    touch: Callable[[str, float], object]  # the user has sent something: online, for T from now on
    # Tells who has been silent for T since the last touch, each once. To be gone through to its end.
    due: Callable[[float], Iterable[IdleUser]]
    next_poll: Callable[[float], float]  # returns when `due` wants to be called next
    # As `touch` for many users in one call; None if the API has no such call
    touch_batch: Callable[[Sequence[str], float], object] | None = None

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        if self.touch_batch:
            self.touch_batch(uids, now)
            return
        for uid in uids:
            self.touch(uid, now)


def nothing(_timeout_s: float) -> Technique:
    """Return a technique that does nothing, to measure the player alone."""
    return Technique(lambda _uid, _now: None, lambda _: (), lambda _: math.inf, lambda _uids, _now: None)


def presence_wheel(timeout_s: float) -> Technique:
    """Return the presence wheel, driven as by the server's ticker: polled when a slot begins."""
    ticks = SlotClock(timeout_s / TICKS_PER_TIMEOUT / SLOTS_PER_TICK, time.monotonic())
    wheel: TimingWheel[str] = TimingWheel(2 * TICKS_PER_TIMEOUT * SLOTS_PER_TICK)

    def due(now: float) -> Iterator[IdleUser]:
        tick = ticks.at_or_before(now)
        while uids := wheel.pop_due(tick, SLICE):
            at = time.monotonic()
            yield from (IdleUser(uid, at) for uid in uids)

    return Technique(
        lambda uid, now: wheel.touch(uid, ticks.at_or_after(now + timeout_s)),
        due,
        lambda _: ticks.start_of(wheel.cursor + 1),
        lambda uids, now: wheel.touch_all(uids, ticks.at_or_after(now + timeout_s)),
    )


def lazy_heap(timeout_s: float) -> Technique:
    """Return a heap of (deadline, uid): each touch adds an entry; stale ones are skipped."""
    deadlines: dict[str, float] = {}
    heap: list[tuple[float, str]] = []

    def touch(uid: str, now: float) -> None:
        deadline = deadlines[uid] = now + timeout_s
        heapq.heappush(heap, (deadline, uid))

    def due(now: float) -> Iterator[IdleUser]:
        while heap and heap[0][0] <= now:
            deadline, uid = heapq.heappop(heap)
            if deadlines.get(uid) == deadline:
                del deadlines[uid]
                yield IdleUser(uid, time.monotonic())

    def next_poll(_now: float) -> float:
        """Return the deadline of the first entry that is still true."""
        while heap and deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    return Technique(touch, due, next_poll)


def rearmed_heap(timeout_s: float) -> Technique:
    """Return a heap with one entry per user, re-armed when it comes up; a touch records the time."""
    touched: dict[str, float] = {}
    heap: list[tuple[float, str]] = []

    def touch(uid: str, now: float) -> None:
        if uid not in touched:
            heapq.heappush(heap, (now + timeout_s, uid))
        touched[uid] = now

    def due(now: float) -> Iterator[IdleUser]:
        while heap and heap[0][0] <= now:
            _, uid = heap[0]
            deadline = touched[uid] + timeout_s
            if deadline > now:
                heapq.heapreplace(heap, (deadline, uid))
                continue
            heapq.heappop(heap)
            del touched[uid]
            yield IdleUser(uid, time.monotonic())

    return Technique(touch, due, lambda _: heap[0][0] if heap else math.inf)


class _SilentUsers:
    """Silent users, as the event loop reports them."""

    def __init__(self) -> None:
        self._found: list[IdleUser] = []

    def add(self, uid: str) -> None:
        self._found.append(IdleUser(uid, time.monotonic()))

    def due(self, _now: float) -> Sequence[IdleUser]:
        found, self._found = self._found, []
        return found

    def next_poll(self, now: float) -> float:
        return now if self._found else math.inf


def timer_service(timeout_s: float, timers: TimerService) -> Technique:
    """Return `TimerService`: a timer for each user, which a touch reschedules."""
    silent_users, handles = _SilentUsers(), dict[str, TimerHandle]()

    def silent(uid: str) -> None:
        del handles[uid]
        silent_users.add(uid)

    def touch(uid: str, _now: float) -> None:
        handle = handles.get(uid)
        if handle is None or not timers.reschedule(handle, timeout_s):
            handles[uid] = timers.schedule(timeout_s, silent, uid)

    return Technique(touch, silent_users.due, silent_users.next_poll)


def trio_deadlines(timeout_s: float, nursery: trio.Nursery) -> Technique:
    """Return a task for each user, which sleeps in a cancel scope; a touch moves the scope's deadline."""
    silent_users, scopes = _SilentUsers(), dict[str, trio.CancelScope]()

    async def wait(uid: str, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_forever()
        if scopes.get(uid) is scope:
            del scopes[uid]
            silent_users.add(uid)

    def touch(uid: str, _now: float) -> None:
        deadline = trio.current_time() + timeout_s
        scope = scopes.get(uid)
        if scope is None or scope.cancel_called:  # its time is up, and its task has not run yet
            scope = scopes[uid] = trio.CancelScope(deadline=deadline)
            nursery.start_soon(wait, uid, scope)
        else:
            scope.deadline = deadline

    return Technique(touch, silent_users.due, silent_users.next_poll)


class _PollInterval:
    """The next poll: a fixed time after the last one."""

    def __init__(self, each_s: float) -> None:
        self._each_s, self._next = each_s, 0.0

    def polled(self, now: float) -> None:
        self._next = now + self._each_s

    def next(self, _now: float) -> float:
        return self._next


def wheel_in_redis(timeout_s: float, wheel: RedisWheel) -> Technique:
    """Return `RedisWheel`: one script per touch; polled some times per tick."""
    poll = _PollInterval(timeout_s / TICKS_PER_TIMEOUT / POLLS_PER_TICK)

    def due(now: float) -> Iterator[IdleUser]:
        poll.polled(now)
        while silences := wheel.due(TAKEN_PER_CALL):
            at = time.monotonic()
            yield from (IdleUser(each.uid, at) for each in silences)
            if len(silences) < TAKEN_PER_CALL:
                break

    return Technique(lambda uid, _: wheel.touch(uid), due, poll.next, lambda uids, _: wheel.touch_many(uids))


def rescheduled(timeout_s: float, timer: SharedTimer, poll_s: float) -> Technique:
    """Return a shared timer whose event, the user's silence, each touch postpones."""
    poll = _PollInterval(poll_s)

    def touch(uid: str, _now: float) -> None:
        if not timer.reschedule(uid, timeout_s):
            timer.schedule(Event(uid, timeout_s))

    def touch_many(uids: Sequence[str], _now: float) -> None:
        if new := [Event(uid, timeout_s) for uid in timer.reschedule_many(uids, timeout_s)]:
            timer.schedule_many(new)

    def due(now: float) -> Iterator[IdleUser]:
        """A user is reported first, and then marked as done."""
        poll.polled(now)
        while dues := timer.due(TAKEN_PER_CALL):
            at = time.monotonic()
            yield from (IdleUser(each.id, at) for each in dues)
            timer.done(dues)

    return Technique(touch, due, poll.next, touch_many)


@asynccontextmanager
async def open_technique(kind: str, timeout_s: float, url: str) -> AsyncIterator[Technique]:
    """Yield a technique, for the length of an ``async with`` block.

    Args:
        kind: a key of `NAMES`, or `NOTHING`.
        timeout_s: T.
        url: of a Redis, for those that need one.
    """
    in_process = {NOTHING: nothing, "wheel": presence_wheel, "heap": lazy_heap, "rearmed": rearmed_heap}
    tick_s = round(timeout_s / TICKS_PER_TIMEOUT, 3)
    if make := in_process.get(kind):
        yield make(timeout_s)
    elif kind == "service":
        async with open_timer_service() as timers:
            yield timer_service(timeout_s, timers)
    elif kind == "trio":
        async with trio.open_nursery() as nursery:
            yield trio_deadlines(timeout_s, nursery)
            nursery.cancel_scope.cancel()
    elif kind == "redis-wheel":
        with closing(RedisWheel(url, "compare", idle_timeout_s=timeout_s, tick_s=tick_s)) as wheel:
            yield wheel_in_redis(timeout_s, wheel)
    elif kind in IN_REDIS:
        leasing = Leasing(lease_s=timeout_s / LEASES_PER_TIMEOUT, attempts_max=100)
        base, poll_s = Keys().timer("compare"), timeout_s / POLLS_PER_TIMEOUT
        with closing(Scripting(url)) as scripting:
            if kind == "ring":
                ring = RingTimer(scripting, base, leasing, slots=2 * TICKS_PER_TIMEOUT, tick_s=tick_s)
                yield rescheduled(timeout_s, ring, tick_s / POLLS_PER_TICK)
            elif kind == "queue":
                yield rescheduled(timeout_s, DelayQueue(scripting, base, leasing), poll_s)
            else:
                with closing(ExpiryTimer(scripting, base, leasing)) as timer:
                    yield rescheduled(timeout_s, timer, poll_s)
    else:
        raise ValueError(f"no such technique: {kind}")
