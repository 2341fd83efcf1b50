"""The techniques that keep everything in Redis; the process keeps nothing and may be one of many."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from loadtest.compare.technique import Found
from presence.store.keys import Keys
from presence.store.scripting import Scripting
from presence.timers.delay_queue import DelayQueue
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.handing import Leasing, SharedTimer
from presence.timers.interface import Event
from presence.timers.redis_wheel import RedisWheel
from presence.timers.ring_timer import RingTimer

TICKS_A_TIMEOUT: Final = 30  # a tick of 1 s for T of 30 s, as for the wheel in the process
LOOKS_A_TICK: Final = 4
LOOKS_A_TIMEOUT: Final = 300  # each 0.1 s of 30: for those that know no ticks
LEASES_A_TIMEOUT: Final = 6  # 5 s of 30: what a killed process had claimed comes again after that
TAKEN_A_CALL: Final = 500
NAME: Final = "compare"


class WheelInRedis:
    """`RedisWheel`: one script a touch."""

    def __init__(self, timeout_s: float, url: str) -> None:
        tick_s = round(timeout_s / TICKS_A_TIMEOUT, 3)
        self._wheel = RedisWheel(url, NAME, idle_timeout_s=timeout_s, tick_s=tick_s)
        self._look_s = tick_s / LOOKS_A_TICK
        self._next_look = 0.0

    def touch(self, uid: str, now: float) -> None:
        """See `Technique`."""
        self._wheel.touch(uid)

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """See `Technique`."""
        self._wheel.touch_many(uids)

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        self._wheel.forget(uid)

    def due(self, now: float) -> Iterator[Found]:
        """See `Technique`."""
        self._next_look = now + self._look_s
        while silences := self._wheel.due(TAKEN_A_CALL):
            at = time.monotonic()
            for each in silences:
                yield Found(each.uid, at)
            if len(silences) < TAKEN_A_CALL:
                break

    def next_look(self, now: float) -> float:
        """Some times a tick."""
        return self._next_look


class Rescheduled:
    """A timer whose event, the user's silence, is put off by each touch.

    Args:
        timer: of Redis.
        timeout_s: T.
        look_s: how often it is asked for what is due.
    """

    def __init__(self, timer: SharedTimer, timeout_s: float, look_s: float) -> None:
        self._timer = timer
        self._timeout_s = timeout_s
        self._look_s = look_s
        self._next_look = 0.0

    def touch(self, uid: str, now: float) -> None:
        """One call, and another for whoever comes."""
        if not self._timer.reschedule(uid, self._timeout_s):
            self._come(uid)

    def _come(self, uid: str) -> None:
        event = Event(uid, self._timeout_s)
        if not self._timer.schedule(event):  # it was handed out, and whoever had it died
            self._timer.cancel(uid)
            self._timer.schedule(event)

    def touch_many(self, uids: Sequence[str], now: float) -> None:
        """One call, and another if some have come."""
        new = [Event(uid, self._timeout_s) for uid in self._timer.reschedule_many(uids, self._timeout_s)]
        if new and self._timer.schedule_many(new) < len(new):
            for event in new:
                self.touch(event.id, now)

    def forget(self, uid: str) -> None:
        """See `Technique`."""
        self._timer.cancel(uid)

    def due(self, now: float) -> Iterator[Found]:
        """A user is told of first, and then done: who is killed in between tells twice and loses nobody."""
        self._next_look = now + self._look_s
        while dues := self._timer.due(TAKEN_A_CALL):
            at = time.monotonic()
            for each in dues:
                yield Found(each.id, at)
            self._timer.done(dues)

    def next_look(self, now: float) -> float:
        """Once in so long."""
        return self._next_look


@contextmanager
def rescheduled(kind: str, timeout_s: float, url: str) -> Iterator[Rescheduled]:
    """Give a timer of a kind: ``queue``, ``ring`` or ``expiry``."""
    leasing = Leasing(lease_s=timeout_s / LEASES_A_TIMEOUT, attempts_max=100)
    tick_s = round(timeout_s / TICKS_A_TIMEOUT, 3)
    look_s = timeout_s / LOOKS_A_TIMEOUT
    base = Keys().timer(NAME)
    with closing(Scripting(url)) as scripting:
        if kind == "ring":
            ring = RingTimer(scripting, base, leasing, slots=2 * TICKS_A_TIMEOUT, tick_s=tick_s)
            yield Rescheduled(ring, timeout_s, tick_s / LOOKS_A_TICK)
        elif kind == "queue":
            yield Rescheduled(DelayQueue(scripting, base, leasing), timeout_s, look_s)
        else:
            with closing(ExpiryTimer(scripting, base, leasing)) as timer:
                yield Rescheduled(timer, timeout_s, look_s)
