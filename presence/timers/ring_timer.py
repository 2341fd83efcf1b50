"""A timing wheel of slots in Redis, shared by any number of processes."""

from typing import Final

import msgpack

from presence.store.script_runner import Scripting
from presence.timers.interface import MAX_EVENTS, TimerError
from presence.timers.shared_timer import Leasing, SharedTimer, delay_ms

MAX_SLOTS: Final = 86_400
MAX_TICK_S: Final = 3600.0


class RingTimer(SharedTimer):
    """Events of any delay, in ticks, shared by any number of processes; a `LeasedTimer`.

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
        super().__init__(scripting, base, leasing or Leasing(), events_max, index=(variant, "ring"))
