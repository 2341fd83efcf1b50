"""The kinds of timers that processes share: the delay queue, the ring, and which of them a timer is.

`presence.timers.expiry_timer` has the third kind, whose timers listen in threads of their own.

Tests: `tests/timers/test_shared_timer.py`, `tests/cli/test_timers.py`.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import msgpack

from presence.store.keys import Keys
from presence.store.script_runner import Scripting
from presence.timers.expiry_timer import ExpiryTimer
from presence.timers.interface import MAX_EVENTS, TimerError
from presence.timers.shared_timer import Leasing, SharedTimer, delay_ms

KINDS: Final = ("ring", "queue", "expiry")
"""The names of the kinds on the command line."""

MAX_SLOTS: Final = 86_400  # of a ring
MAX_TICK_S: Final = 3600.0


class DelayQueue(SharedTimer):
    """Events of any delay, to the millisecond, shared by any number of processes.

    Never early by Redis' clock, and late by its workers' poll interval. At least once: events claimed by a
    worker that died are handed out again after their lease. Adding and handing out cost O(log n) per event,
    with n waiting events. Events are identified by id, so equal payloads are separate events. On a Redis
    Cluster one server holds a queue; many queues spread over servers. Arguments: see `SharedTimer`.

    The idea, a sorted set of ids by due time with the payloads elsewhere, is the delay queue of
    http://kaito-kidd.com/2016/12/26/delay-queue-based-on-redis/, which removes events before they are handled
    and so loses them with a worker; the lease is that of Amazon's SQS (visibility time-out).
    """


class RingTimer(SharedTimer):
    """Events of any delay, in ticks, shared by any number of processes.

    Never early by Redis' clock: an event belongs to the first tick that begins at or after its due time, so
    it is at most a tick late, plus the workers' poll interval. There is no leader: the hand of the ring is in
    Redis, and each call of `due` moves it over all slots that have passed, also those passed while no worker
    ran. At least once: events claimed by a worker that died are handed out again after their lease. Adding
    and handing out cost O(log k) per event, with k events in its slot; events of later laps are not touched.
    A large slot is handed out in slices.

    The idea, slots as sorted sets whose score is the lap, is that of a ring queue in Redis described in
    Chinese blogs, which counts laps down one by one in each slot, and skips a slot whenever its process is
    late.

    Args:
        scripting, base, leasing, events_max: see `SharedTimer`.
        slots: of the ring; delays beyond slots x tick_s take more than one lap. Kept in Redis: a timer has
            one number of slots and one tick, and calls with others are refused.
        tick_s: to the millisecond.

    Raises:
        TimerError: `slots` or `tick_s` is out of bounds. By its calls: the timer in Redis has others.
    """

    def __init__(
        self,
        scripting: Scripting,
        base: str,
        leasing: Leasing | None = None,
        *,
        slots: int = 60,
        tick_s: float = 1.0,
        events_max: int = MAX_EVENTS,
    ) -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise TimerError(f"slots {slots!r} is not between 1 and {MAX_SLOTS}")
        if not 0.001 <= tick_s <= MAX_TICK_S:
            raise TimerError(f"tick_s {tick_s!r} is not between 0.001 and {MAX_TICK_S:.0f}")
        variant = msgpack.packb([slots, delay_ms(tick_s), f"{base}:slot:"])
        super().__init__(scripting, base, leasing, events_max=events_max, index=(variant, "ring"))


@dataclass(frozen=True, slots=True)
class TimerLocation:
    """Location and kind of a timer."""

    redis_url: str
    kind: str  # one of `KINDS`
    name: str  # of the timer; a name is of one kind
    prefix: str = "presence"  # of all keys
    slots: int = 60  # of a ring, see `RingTimer`
    tick_s: float = 1.0  # likewise

    @property
    def base(self) -> str:
        """Prefix of its keys."""
        return Keys(self.prefix).timer(self.name)

    @contextmanager
    def open(self, leasing: Leasing | None = None) -> Iterator[SharedTimer]:
        """Lend the timer, with connections of its own, for the length of a ``with`` block.

        Raises:
            TimerError: a setting is out of its bounds.
        """
        with closing(Scripting(self.redis_url)) as scripting:
            if self.kind == "ring":
                yield RingTimer(scripting, self.base, leasing, slots=self.slots, tick_s=self.tick_s)
            elif self.kind == "queue":
                yield DelayQueue(scripting, self.base, leasing)
            else:
                with closing(ExpiryTimer(scripting, self.base, leasing)) as timer:
                    yield timer
